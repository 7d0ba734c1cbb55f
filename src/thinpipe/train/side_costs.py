"""What a step cost each side of a pipeline: a stage, a rank, or one end of a network.

It stands in the log beside what the step cost in all, as ``sides``. Logs of runs without any, and of earlier versions,
have none. What was not measured is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from thinpipe.remote.cost import StepCost
from thinpipe.runtime.spent import Spent
from thinpipe.train.step_costs import RankCost

_TIMES = ("computed", "encode", "decode", "stalled")


@dataclass(frozen=True, kw_only=True)
class SideTimes:
    """Seconds of one side in one step.

    Args:
        computed: computing.
        encode: packing what it sent.
        decode: unpacking what came.
        stalled: waiting for another side.
        beside: whether it packs and unpacks in other threads, while it computes or waits (default: no).
    """

    computed: float
    encode: float
    decode: float
    stalled: float
    beside: bool = False


@dataclass(frozen=True, kw_only=True)
class SideCost:
    """What a step cost one side.

    Args:
        name: as ``stage 0``.
        times: None where nobody could measure them, as on a GPU by the host's clock.
        peak_up: bytes a second that it sent to later sides in the busiest tenth of a second; 0 if none was measured.
        peak_down: likewise to earlier sides.
    """

    name: str
    times: SideTimes | None = None
    peak_up: float = 0.0
    peak_down: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values, without what was not measured."""
        peaks = {"peak_up": self.peak_up, "peak_down": self.peak_down}
        said = {"name": self.name, **{name: round(peak) for name, peak in peaks.items() if peak}}
        if self.times is not None:
            # A log has a line for each step; less than a microsecond would only make it longer.
            said |= {name: round(getattr(self.times, name), 6) for name in _TIMES}
            said |= {"beside": True} if self.times.beside else {}
        return said

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SideCost:
        """Reads what ``to_json`` said."""
        own = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        times = {name: value[name] for name in SideTimes.__dataclass_fields__ if name in value}
        return cls(**own, times=SideTimes(**times) if times else None)


@dataclass(frozen=True)
class SidedCost:
    """What a step cost in all, and each side.

    Args:
        whole: in all.
        sides: each side.
    """

    whole: StepCost
    sides: Sequence[SideCost]

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values; ``StepCost`` reads those of the whole."""
        return {**self.whole.to_json(), "sides": [side.to_json() for side in self.sides]}


def stage_sides(spent: Sequence[Spent | None], before: Sequence[Spent | None]) -> list[SideCost]:
    """Lists the stages of a ``Pipe``: what their threads spent between two moments."""
    found = []
    for number, (after, earlier) in enumerate(zip(spent, before, strict=True)):
        times = None
        if after is not None:
            own = after.since(earlier or Spent())
            times = SideTimes(computed=own.computed, encode=own.encode, decode=own.decode, stalled=own.waited)
        found.append(SideCost(name=f"stage {number}", times=times))
    return found


def rank_sides(costs: Sequence[RankCost]) -> list[SideCost]:
    """Lists ranks, by what each counted of a step."""
    return [
        SideCost(
            name=f"rank {rank}",
            times=_times(asdict(cost)) if cost.timed else None,
            peak_up=cost.peak_up,
            peak_down=cost.peak_down,
        )
        for rank, cost in enumerate(costs)
    ]


def sides_of(cost: Mapping[str, Any]) -> list[SideCost]:
    """Reads the sides of a step from its line in the log; none where nobody knows how its seconds are made up.

    A client and its server are the two halves of ``StepCost`` itself.
    """
    if "sides" in cost:
        return [SideCost.from_json(side) for side in cost["sides"]]
    if not cost.get("server_computed"):
        return []
    server = {name.removeprefix("server_"): value for name, value in cost.items() if name.startswith("server_")}
    return [
        SideCost(name="client", times=_times(cost), peak_up=cost["peak_sent"]),
        SideCost(name="server", times=_times(server), peak_down=server["peak_sent"]),
    ]


def _times(cost: Mapping[str, Any]) -> SideTimes:
    return SideTimes(**{name: cost[name] for name in _TIMES}, beside=True)
