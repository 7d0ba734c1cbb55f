"""The computation time: what a batch takes with nothing on the wire, which is one figure for all codecs.

::

    results/two-machines-computation/before-relu-none-4.json     measured once, for all links and codecs
    results/two-machines/4gbit-before-relu-wave4-4.json          takes it from there

It is the median of batches that the same two processes compute, as ``dry`` has them. A bottleneck computes, too, and
has a figure of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from thinpipe.bench.record import Machine, Record
from thinpipe.reproduce.two_machines.documents import NONE
from thinpipe.reproduce.two_machines.figures import COMPUTATION
from thinpipe.reproduce.two_machines.row import FULL, Row

BENCH = "two-machines-computation"
"""The folder of its records."""
BATCHES = 12
"""That are measured, after those that warm up."""
NOT_IDLE = (
    "a batch took less than the computation alone, measured twice, which cannot be: something else ran on this machine "
    "meanwhile; measure it again on an idle one, with --again"
)


@dataclass
class Computation:
    """What was measured of batches with nothing on the wire.

    Args:
        measure: takes a row, and tells the seconds of its batches with nothing on the wire; none where it cannot be.
        settings: of a row, which its figures depend on.
        folder: of records; None where none are kept.
        is_again: whether what is recorded does not count.
    """

    measure: Callable[[Row], list[float]]
    settings: Callable[[Row], dict[str, Any]]
    folder: Path | None
    is_again: bool
    _known: dict[Row, list[float]] = field(default_factory=dict)

    def of(self, row: Row) -> list[float]:
        """Finds the seconds of batches, or measures them."""
        place = _place(row)
        if place not in self._known:
            self._known[place] = self._recorded(place) or self._measured(place)
        return self._known[place]

    def again(self, row: Row) -> list[float]:
        """Measures once more, and keeps the batches that were the quicker ones: what disturbs them can only add."""
        place = _place(row)
        before, now = self.of(row), self._measured(place)
        if before and median(before) < median(now):
            self._keep(place, before)
            now = before
        self._known[place] = now
        return now

    def _measured(self, place: Row) -> list[float]:
        seconds = self.measure(place)
        if seconds:
            self._keep(place, seconds)
        return seconds

    def _keep(self, place: Row, seconds: list[float]) -> None:
        if self.folder is not None:
            results: dict[str, float | None] = {"computation_s": round(median(seconds), 5)}
            machine, row = Machine.current("pyzmq"), _name(place)
            Record(BENCH, results, {COMPUTATION: seconds}, self.settings(place), machine, row=row).save(self.folder)

    def _recorded(self, place: Row) -> list[float] | None:
        """Reads what this machine measured before, with the same settings."""
        path = None if self.folder is None else self.folder / BENCH / f"{_name(place)}.json"
        if self.is_again or path is None or not path.exists():
            return None
        record = Record.load(path)
        same = record.settings == self.settings(place) and record.machine == Machine.current("pyzmq")
        return record.samples[COMPUTATION] if same else None


def is_less(total: list[float], computation: list[float]) -> bool:
    """Tells whether batches took less than their computation alone, which cannot be."""
    return bool(computation) and median(total) < median(computation)


def _place(row: Row) -> Row:
    """Names what all rows have in common that compute the same: neither link nor codec is part of it."""
    return Row(FULL, row.cut, NONE, row.chunks, row.bottleneck)


def _name(place: Row) -> str:
    return place.name.removeprefix(f"{FULL}-")
