"""Where ``thinpipe bench pipeline-vs-dp`` cuts its models.

::

    even, 2 processes      units 0 ... | ... n        ranks 0 1        balanced by measured time
    client, 2 processes    first | middle | last      ranks 0 1 0      the middle is the server's
    client, 4 processes    first | m | m | m | last   ranks 0 1 2 3 0  the middle balanced by measured time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from torch import nn

from thinpipe.balance import balance_cost, profile_times
from thinpipe.bench.shapes import Shape, part_of
from thinpipe.cutting import split


class Manner(StrEnum):
    """How a model is dealt out to processes."""

    EVEN = "even"
    CLIENT = "client"


@dataclass(frozen=True)
class Cut:
    """A model dealt out.

    Args:
        at: the modules that begin a stage, but for the first one.
        ranks: of the stages.
    """

    at: tuple[str, ...]
    ranks: tuple[int, ...]


def unit_seconds(shape: Shape, model: nn.Module, sample: object, seconds: float) -> list[float]:
    """Measures each unit of a model, which is used up, forward and backward."""
    return profile_times(split(model, at=shape.units(model)).sequential(), sample, timeout=seconds)


def cut(manner: Manner, names: Sequence[str], costs: Sequence[float], processes: int, ends: int) -> Cut:
    """Deals out a model.

    Args:
        manner: evenly, or with both ends on the first process.
        names: of the units, without the first one.
        costs: of the units.
        processes: how many.
        ends: the number of units that a client has at each end.
    """
    if manner is Manner.EVEN:
        balance, ranks = balance_cost(list(costs), processes), tuple(range(processes))
    else:
        middle = balance_cost(list(costs)[ends:-ends], processes - 1)
        balance, ranks = [ends, *middle, ends], (*range(processes), 0)
    return Cut(tuple(names[end - 1] for end in list(accumulate(balance))[:-1]), ranks)


def micro_batch(batch: object, chunks: int, rows: int) -> object:
    """Takes the first micro-batch of a batch."""
    return part_of(batch, slice(-(-rows // chunks)))
