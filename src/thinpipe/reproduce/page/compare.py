"""What a row gains or loses against ``none``: seed by seed, with those alone that both were trained with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from thinpipe.bench.record import Record
from thinpipe.reproduce.page.figures import Figure
from thinpipe.reproduce.training.rows import Shown, Spread
from thinpipe.reproduce.training.table import NONE

_OWN = ("cut", "bottleneck", "bottleneck_fit", "bottleneck_file", "layout")
"""What rows of a table differ in, and how images lie in memory."""
_COUNTED = ("epochs", "train_rows", "test_rows")


@dataclass(frozen=True)
class Difference:
    """What a row has more than ``none``, or less.

    Args:
        spread: over seeds, of a figure as it is recorded.
        seeds: that both were trained with.
        every: whether neither has any other.
    """

    spread: Spread
    seeds: int
    every: bool

    @classmethod
    def of(cls, each: Shown, rows: Sequence[Shown], figure: Figure | None = None) -> Difference | None:
        """Compares a row with that of the same table without codecs.

        Args:
            each: the row.
            rows: all that are recorded.
            figure: what of them (default: what its work is measured by).

        Returns:
            The difference; None where there is nothing to compare it with, or one of the seeds lacks the figure.
        """
        base = next((other for other in rows if _is_base(other, each)), None)
        if base is None:
            return None
        bases = {record.settings["seed"]: record for record in base.records}
        own = {record.settings["seed"]: record for record in each.records}
        both = [seed for seed in own if seed in bases and alike(own[seed], bases[seed])]
        value = (figure or Figure.result(each.row.work.measure)).of
        pairs = [(value(own[seed]), value(bases[seed])) for seed in both]
        found = [ours - without for ours, without in pairs if ours is not None and without is not None]
        spread = Spread.of(found) if len(found) == len(both) else None
        return None if spread is None else cls(spread, len(both), len(both) == len(own) == len(bases))


def alike(one: Record, other: Record) -> bool:
    """Tells whether two records are of the same training, but for what crosses the cuts.

    A setting that only one of them has is younger than the other record.
    """
    pairs = ((one.settings, other.settings, ("stand_in", "tiny")), (one.results, other.results, _COUNTED))
    if any(a.get(name) != b.get(name) for a, b, names in pairs for name in names):
        return False
    return _agree(one.settings["recipe"], other.settings["recipe"])


def _agree(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    names = [name for name in one if name in other and name not in _OWN]
    # Where a file of weights lies is no part of it.
    return all(PurePath(str(one[name])).name == PurePath(str(other[name])).name for name in names)


def _is_base(other: Shown, each: Shown) -> bool:
    row = other.row
    same = (row.work.label, row.cut) == (each.row.work.label, each.row.cut)
    return same and row.codec == NONE and row.learned is None
