"""The rows of a table as they are shown: what all seeds of a row gave, together."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from thinpipe.bench.record import Record
from thinpipe.reproduce.training.table import Row, Table

SPIKE, EARLY = 4.0, 0.25
"""How many times the median norm of an epoch's gradients a spike is, and in what part of a run it counts."""


@dataclass(frozen=True)
class Spread:
    """A figure over seeds.

    Args:
        mean: over all of them.
        deviation: the standard deviation of a sample; 0 of one seed.
    """

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Sums up; None where there is nothing."""
        if not values:
            return None
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)

    def written(self, seeds: int, *, scale: float = 100.0, digits: int = 2, sign: str = "") -> str:
        """Writes the mean, with its deviation where there are several seeds.

        Args:
            seeds: how many.
            scale: what both are multiplied by (default: 100, for a share in percent).
            digits: behind the point (default: 2).
            sign: ``+`` for a difference (default: none).
        """
        text = f"{scale * self.mean:{sign}.{digits}f}"
        return f"{text} ± {scale * self.deviation:.{digits}f}" if seeds > 1 else text


@dataclass(frozen=True)
class Shown:
    """A row with what was recorded of it.

    Args:
        row: of the table.
        records: one for each seed; none where it was skipped.
        skipped: why it was (default: it was not).
    """

    row: Row
    records: Sequence[Record]
    skipped: str | None = None

    def spread(self, name: str) -> Spread | None:
        """Sums up a result over seeds."""
        values = (record.results.get(name) for record in self.records)
        return Spread.of([value for value in values if value is not None])

    def mean(self, name: str) -> float | None:
        """Computes the mean of a result over seeds."""
        found = self.spread(name)
        return None if found is None else found.mean

    def spikes(self) -> tuple[int, int] | None:
        """Counts the runs in which a gradient spiked early, and those whose norms are known; None of none."""
        known = [record for record in self.records if {"grad_norm", "grad_norm_largest"} <= record.samples.keys()]
        return (sum(map(_has_spike, known)), len(known)) if known else None

    def curve(self) -> list[Spread]:
        """Sums up what the row is judged by, epoch by epoch, as far as all seeds have come."""
        curves = [record.samples[self.row.work.measure] for record in self.records]
        spreads = (Spread.of(values) for values in zip(*curves, strict=False))
        return [each for each in spreads if each is not None]


def _has_spike(record: Record) -> bool:
    """Tells whether, early in a run, a gradient was far longer than is usual in its epoch."""
    usual, largest = record.samples["grad_norm"], record.samples["grad_norm_largest"]
    early = range(max(1, round(EARLY * len(usual))))
    return any(largest[epoch] > SPIKE * usual[epoch] for epoch in early)


def shown(table: Table, records: Iterable[Record], skipped: Mapping[str, str] | None = None) -> list[Shown]:
    """Puts records and skipped rows in the table's order; rows of which there is neither are left out.

    Args:
        table: whose.
        records: of any of its rows, in any order.
        skipped: for names of rows the reasons (default: none is).
    """
    reasons, by_row = skipped or {}, dict[str, list[Record]]()
    for record in records:
        by_row.setdefault(record.settings["row"], []).append(record)
    return [
        Shown(row, sorted(by_row.get(row.name, []), key=lambda each: each.settings["seed"]), reasons.get(row.name))
        for row in table.cut_at()
        if row.name in by_row or row.name in reasons
    ]


def records_in(table: Table, folder: Path) -> list[Record]:
    """Reads all that is recorded of a table, whatever the seeds."""
    patterns = (f"{row.name}-seed*.json" for row in table.cut_at())
    return [Record.load(path) for pattern in patterns for path in sorted((folder / table.name).glob(pattern))]
