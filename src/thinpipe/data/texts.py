"""A set of texts, or of pairs of texts, with their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts, row by row.

    Args:
        first: the texts, or the first ones of pairs.
        second: the second ones of pairs; ``None`` where texts stand alone.
        labels: their classes from 0, int64.
    """

    first: Sequence[str]
    second: Sequence[str] | None
    labels: Tensor

    def __post_init__(self) -> None:
        counts = {len(self.first), len(self.labels), *(() if self.second is None else (len(self.second),))}
        if len(counts) > 1:
            raise ValueError(f"there are as many labels as texts, got {sorted(counts)}")

    def __len__(self) -> int:
        return len(self.labels)

    def empty(self) -> list[int]:
        """Lists the rows of which a text has no letter."""
        pairs = zip(self.first, self.first if self.second is None else self.second, strict=True)
        return [row for row, (first, second) in enumerate(pairs) if not (first.strip() and second.strip())]


@dataclass(frozen=True, eq=False)
class TextSet:
    """What is trained on and what is tested with.

    Args:
        train: texts to train on.
        test: texts to test with: the validation part, where the test part's labels are not published.
        classes: the names of the classes, in the order of their numbers.
        notes: what a reader of a result must know. Default: nothing.
    """

    train: Texts
    test: Texts
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
