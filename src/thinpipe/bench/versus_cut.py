"""Where ``thinpipe bench pipeline-vs-dp`` cuts its models, by name.

::

    client, 2 processes         first | middle | last       ranks 0 1 0
    client, 4 processes         first | m | m | m | last    ranks 0 1 2 3 0  the middle in Epipe's pieces
    halves, 2 processes         0-2 | 3-16 | 17-18, head    ranks 0 1 0      MobileNetV2, "separated averagely"
    client-timed, 4 processes   first | m | m | m | last    ranks 0 1 2 3 0  the middle balanced by measured time
    even-timed, 2 processes     units 0 ... | ... n         ranks 0 1        balanced by measured time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from torch import nn

from thinpipe.balance import balance_cost, profile_times
from thinpipe.bench.shapes import MOBILENET, ROBERTA, Shape, part_of
from thinpipe.bench.workload import stretched
from thinpipe.cutting import split


class Manner(StrEnum):
    """How a model is dealt out to processes."""

    CLIENT = "client"
    HALVES = "halves"
    CLIENT_TIMED = "client-timed"
    EVEN_TIMED = "even-timed"

    @property
    def is_timed(self) -> bool:
        """Whether it follows measured times, and not Epipe."""
        return self in (Manner.CLIENT_TIMED, Manner.EVEN_TIMED)


@dataclass(frozen=True)
class Cut:
    """A model dealt out.

    Args:
        at: the modules that begin a stage, but for the first one.
        ranks: of the stages.
    """

    at: tuple[str, ...]
    ranks: tuple[int, ...]


DOCUMENTS: dict[tuple[Manner, str, int], tuple[int, ...]] = {
    (Manner.CLIENT, MOBILENET, 2): (1, 18, 1),
    (Manner.CLIENT, MOBILENET, 4): (1, 2, 4, 12, 1),
    (Manner.CLIENT, ROBERTA, 2): (2, 10, 2),
    (Manner.CLIENT, ROBERTA, 4): (2, 4, 4, 2, 2),
    (Manner.HALVES, MOBILENET, 2): (3, 14, 3),
}
"""Units of each stage, as Epipe's programs cut: features of MobileNetV2, layers of RoBERTa; the head is a unit, too."""


def is_known(manner: Manner, model: str, processes: int) -> bool:
    """Tells whether a model can be dealt out so: Epipe has no cut for every number of processes."""
    return manner.is_timed or (manner, model, processes) in DOCUMENTS


def unit_seconds(shape: Shape, model: nn.Module, sample: object, seconds: float) -> list[float]:
    """Measures each unit of a model, which is used up, forward and backward."""
    return profile_times(split(model, at=shape.units(model)).sequential(), sample, timeout=seconds)


def documents_cut(manner: Manner, model: str, names: Sequence[str], processes: int) -> Cut:
    """Deals out a model as Epipe did.

    Args:
        manner: one of theirs.
        model: its name.
        names: of the units, without the first one; a small model of the same kind may have fewer.
        processes: how many.
    """
    first, *middle, last = DOCUMENTS[manner, model, processes]
    inner = stretched(tuple(middle), len(names) + 1 - first - last)
    return _cut((first, *inner, last), (*range(processes), 0), names)


def timed_cut(manner: Manner, names: Sequence[str], costs: Sequence[float], processes: int, ends: int) -> Cut:
    """Deals out a model by measured time.

    Args:
        manner: evenly, or with both ends on the first process.
        names: of the units, without the first one.
        costs: of the units.
        processes: how many.
        ends: the number of units that a client has at each end.
    """
    if manner is Manner.EVEN_TIMED:
        return _cut(balance_cost(list(costs), processes), tuple(range(processes)), names)
    middle = balance_cost(list(costs)[ends:-ends], processes - 1)
    return _cut([ends, *middle, ends], (*range(processes), 0), names)


def _cut(balance: Sequence[int], ranks: tuple[int, ...], names: Sequence[str]) -> Cut:
    return Cut(tuple(names[end - 1] for end in list(accumulate(balance))[:-1]), ranks)


def micro_batch(batch: object, chunks: int, rows: int) -> object:
    """Takes the first micro-batch of a batch."""
    return part_of(batch, slice(-(-rows // chunks)))
