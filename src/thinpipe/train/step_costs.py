"""What a step cost, however the recipe is trained, told as a client tells what its step with a server cost.

``StepCost`` knows two sides. Without a server they are::

    in process      all stages                             nobody
    ranks           rank 0                                 all other ranks together
    data parallel   rank 0                                 nobody

    sent            from a stage to the next one, or from a rank to one with a higher number
    received        the other way

What each stage or rank did with its time is told beside it; see ``side_costs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from thinpipe.remote.cost import HalfCost, StepCost
from thinpipe.runtime.crossing import Flow
from thinpipe.runtime.statistics import Lane, Statistics

_NOTHING = HalfCost(0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0.0, 0.0)


@dataclass(frozen=True)
class Bytes:
    """Bytes each way.

    Args:
        sent: to later stages, or to ranks with higher numbers.
        received: the other way.
        raw_sent: before they were packed.
        raw_received: before they were packed.
    """

    sent: int = 0
    received: int = 0
    raw_sent: int = 0
    raw_received: int = 0

    @classmethod
    def of_flows(cls, flows: Sequence[tuple[Flow, Flow]]) -> Bytes:
        """Counts what has crossed all cuts of a ``Pipe`` so far."""
        return cls(
            sent=sum(there.packed for there, _ in flows),
            received=sum(back.packed for _, back in flows),
            raw_sent=sum(there.raw for there, _ in flows),
            raw_received=sum(back.raw for _, back in flows),
        )

    def cost(self, before: Bytes, *, step: int, rows: int, seconds: float) -> StepCost:
        """Makes the cost of a step of one process, as a whole: how its seconds are made up is not told here."""
        own = HalfCost(
            computed=seconds,
            stalled=0.0,
            encode=0.0,
            decode=0.0,
            sent=self.sent - before.sent,
            received=self.received - before.received,
            raw_sent=self.raw_sent - before.raw_sent,
            raw_received=self.raw_received - before.raw_received,
            peak_sent=0.0,
            peak_received=0.0,
        )
        return StepCost.of(step, rows, seconds, own, _NOTHING)


@dataclass(frozen=True)
class RankCost:
    """What one rank counted: of a step, or since its pipeline began.

    Args:
        computed: seconds of computing.
        stalled: seconds of waiting for others.
        encode: seconds of packing.
        decode: seconds of unpacking.
        up: bytes sent to ranks with higher numbers.
        down: bytes sent to ranks with lower numbers.
        raw_up: those bytes before they were packed.
        raw_down: those bytes before they were packed.
        peak_sent: bytes a second in the busiest tenth of a second so far.
        peak_received: likewise.
        peak_up: of ``peak_sent``, to ranks with higher numbers.
        peak_down: of ``peak_sent``, to ranks with lower numbers.
        timed: whether ``computed`` is that: a GPU computes long after its rank has told it to.
    """

    computed: float = 0.0
    stalled: float = 0.0
    encode: float = 0.0
    decode: float = 0.0
    up: int = 0
    down: int = 0
    raw_up: int = 0
    raw_down: int = 0
    peak_sent: float = 0.0
    peak_received: float = 0.0
    peak_up: float = 0.0
    peak_down: float = 0.0
    timed: bool = True

    @classmethod
    def so_far(cls, rank: int, statistics: Statistics | None, *, timed: bool = True) -> RankCost:
        """Reads what a rank has counted until now; times of computing and waiting are those of the last step."""
        if statistics is None:
            return cls()
        sent = [lane for lane in statistics.lanes if lane.outgoing]
        came = [lane for lane in statistics.lanes if not lane.outgoing]
        up, down = ([lane for lane in sent if (lane.peer > rank) is higher] for higher in (True, False))
        return cls(
            computed=statistics.computed,
            stalled=statistics.stalled,
            encode=sum(lane.reading.encode for lane in sent),
            decode=sum(lane.reading.decode for lane in came),
            up=sum(lane.reading.sent for lane in up),
            down=sum(lane.reading.sent for lane in down),
            raw_up=sum(lane.reading.raw for lane in up),
            raw_down=sum(lane.reading.raw for lane in down),
            peak_sent=_peak(sent),
            peak_received=_peak(came),
            peak_up=_peak(up),
            peak_down=_peak(down),
            timed=timed,
        )

    def since(self, before: RankCost) -> RankCost:
        """Tells what one step added to an earlier count."""
        summed = {name: getattr(self, name) - getattr(before, name) for name in _SUMMED}
        return RankCost(**{**asdict(self), **summed})

    def with_sums(self, size: int, *, higher: bool) -> RankCost:
        """Adds the bytes that a rank of a replica sent to the next replica when gradients were added up."""
        way = "up" if higher else "down"
        return replace(self, **{name: getattr(self, name) + size for name in (way, f"raw_{way}")})

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values."""
        return asdict(self)


_SUMMED = ("encode", "decode", "up", "down", "raw_up", "raw_down")


def ranks_cost(costs: Sequence[RankCost], *, step: int, rows: int, seconds: float) -> StepCost:
    """Puts together what all ranks counted of a step; rank 0's comes first."""
    first, *others = costs
    return StepCost(
        step=step,
        rows=rows,
        seconds=seconds,
        computed=first.computed,
        server_computed=sum(each.computed for each in others),
        encode=first.encode,
        decode=first.decode,
        server_encode=sum(each.encode for each in others),
        server_decode=sum(each.decode for each in others),
        stalled=first.stalled,
        server_stalled=sum(each.stalled for each in others),
        sent=sum(each.up for each in costs),
        received=sum(each.down for each in costs),
        raw_sent=sum(each.raw_up for each in costs),
        raw_received=sum(each.raw_down for each in costs),
        peak_sent=first.peak_sent,
        peak_received=first.peak_received,
        server_peak_sent=max((each.peak_sent for each in others), default=0.0),
        server_peak_received=max((each.peak_received for each in others), default=0.0),
    )


def _peak(lanes: Sequence[Lane]) -> float:
    return max((lane.reading.peak for lane in lanes), default=0.0)
