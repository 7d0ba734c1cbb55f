"""What a batch cost each side of a run in time: a stage, a rank, or one end of a network."""

from __future__ import annotations

from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

from thinpipe.remote.cost import StepCost
from thinpipe.report.figures import usual_steps
from thinpipe.report.run import Run
from thinpipe.report.sides import sides_of as names_of
from thinpipe.train.log import RunError
from thinpipe.train.side_costs import SideCost, SideTimes, sides_of
from thinpipe.train.way import Way

_TIMES = tuple(each.name for each in fields(SideTimes) if each.name != "beside")


@dataclass(frozen=True, kw_only=True)
class SideMean:
    """Seconds of one side in a batch, means of those that count.

    Args:
        name: of the side.
        computed: computing.
        encode: packing what it sent.
        decode: unpacking what came.
        stalled: waiting for another side.
        beside: whether it packs and unpacks while it computes or waits.
    """

    name: str
    computed: float
    encode: float
    decode: float
    stalled: float
    beside: bool


def side_means(run: Run) -> list[SideMean]:
    """Sums up the sides of a run; none where nobody measured how a step's seconds are made up.

    Raises:
        RunError: the cost of a step makes no sense.
    """
    known: dict[str, list[SideTimes]] = {}
    for line in usual_steps(run):
        try:
            sides = _sides(run, line.cost) if line.cost else []
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"the log of {run.path} is damaged: the sides of step {line.step} are {error}") from error
        for side in sides:
            if side.times is not None:
                known.setdefault(side.name, []).append(side.times)
    return [_mean(name, times) for name, times in known.items()]


def _sides(run: Run, cost: dict[str, Any]) -> list[SideCost]:
    way = run.origin.settings.way
    if "sides" in cost or way is Way.CONNECTED:
        return sides_of(cost)
    if way is not Way.RANKS:
        return []
    # The first version's logs have all ranks but the first in one.
    whole, names = StepCost.from_json(cost), names_of(way)
    return [
        SideCost(name=name, times=SideTimes(**{each: getattr(whole, prefix + each) for each in _TIMES}, beside=True))
        for name, prefix in ((names.first, ""), (names.second, "server_"))
        if name is not None
    ]


def _mean(name: str, times: list[SideTimes]) -> SideMean:
    means = {each: fmean(getattr(one, each) for one in times) for each in _TIMES}
    return SideMean(name=name, **means, beside=times[0].beside)
