"""What of its records a row is shown with, and how that is written: shares in percent, losses as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thinpipe.bench.record import Record
from thinpipe.reproduce.training.rows import Spread


@dataclass(frozen=True)
class Figure:
    """A figure of a record.

    Args:
        of: finds it; None where a record does not have it.
        scale: what it is multiplied by to be written (default: 100, for a share in percent).
        digits: behind the point (default: 2).
    """

    of: Callable[[Record], float | None]
    scale: float = 100.0
    digits: int = 2

    @classmethod
    def result(cls, name: str) -> Figure:
        """Makes the figure of a result that is a share of 1."""
        return cls(lambda record: record.results.get(name))

    def spread(self, records: Sequence[Record]) -> Spread | None:
        """Sums it up over records; None where one of them lacks it: the others alone would flatter the row."""
        found = [value for record in records if (value := self.of(record)) is not None]
        return Spread.of(found) if len(found) == len(records) else None

    def written(self, spread: Spread | None, seeds: int, *, sign: str = "") -> str:
        """Writes a figure over seeds.

        Args:
            spread: of it.
            seeds: with a deviation, if there are several.
            sign: ``+`` for a difference (default: none).
        """
        if spread is None:
            return "-"
        return spread.written(seeds, scale=self.scale, digits=self.digits, sign=sign)


def _last_loss(record: Record) -> float | None:
    losses = record.samples.get("train_loss")
    return losses[-1] if losses else None


LAST_LOSS = Figure(_last_loss, scale=1.0, digits=3)
"""In training, over the last epoch; none where a loss was not finite."""
