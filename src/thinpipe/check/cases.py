"""Which splits, chunks and checkpoint modes are tried, against what, and how each of them ended: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from thinpipe.check.compare import Difference

Cut: TypeAlias = tuple[int, ...] | tuple[str, ...]
"""How a model is cut: a balance, or the names of the modules that begin a stage."""

REPLAY = "never, same seed"
"""What a recomputation is compared with: the same pipe that kept its activations, random numbers and all."""


@dataclass(frozen=True)
class Settings:
    """What is to be tried.

    Args:
        splits: the balances, or names at which to cut.
        chunks: the numbers of micro-batches.
        modes: the checkpoint modes.
        deferred: whether BatchNorm defers its statistics.
        tolerance: the largest difference that still counts as rounding, relative to the largest magnitude.
    """

    splits: tuple[Cut, ...]
    chunks: tuple[int, ...]
    modes: tuple[str, ...]
    deferred: bool
    tolerance: float


@dataclass(frozen=True)
class Case:
    """One way to run the model: a split (empty for one device), chunks, a checkpoint mode, and what it must equal."""

    split: Cut
    chunks: int
    checkpoint: str
    against: str

    def __str__(self) -> str:
        if not self.split:
            return "one device"
        return f"split {','.join(map(str, self.split))}, chunks {self.chunks}, checkpoint {self.checkpoint}"


@dataclass(frozen=True)
class Result:
    """How a case ended.

    Args:
        case: the case.
        equal: whether every difference is within the tolerance.
        differences: the largest difference of each quantity; empty if the case failed with an error.
        error: the error, in a line.
        hint: what the user may make of it.
    """

    case: Case
    equal: bool
    differences: list[Difference] = field(default_factory=list)
    error: str = ""
    hint: str = ""

    @property
    def worst(self) -> Difference | None:
        """The largest difference of all quantities."""
        return max(self.differences, key=lambda difference: difference.value, default=None)


def stages_of(cut: Cut) -> int:
    """Counts the stages of a cut."""
    return len(cut) + any(isinstance(place, str) for place in cut)
