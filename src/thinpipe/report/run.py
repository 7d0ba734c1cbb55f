"""A run as it is read from its folder, whether it is finished, interrupted or still going on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thinpipe.train.log import EvaluationLine, Origin, RunFolder, StepLine


@dataclass(frozen=True)
class Run:
    """A run.

    Args:
        path: its folder.
        origin: what it was made from.
        steps: the lines of its steps, in order.
        evaluations: the lines of its evaluations, in order.
    """

    path: Path
    origin: Origin
    steps: list[StepLine]
    evaluations: list[EvaluationLine]

    @classmethod
    def read(cls, path: Path) -> Run:
        """Reads a folder.

        Raises:
            RunError: it has no run, or a damaged one.
        """
        folder = RunFolder(path)
        origin, lines = folder.origin(), list(folder.lines())
        steps = [line for line in lines if isinstance(line, StepLine)]
        return cls(path, origin, steps, [line for line in lines if isinstance(line, EvaluationLine)])

    @property
    def finished(self) -> bool:
        """Whether it came to the end of its epochs."""
        return bool(self.evaluations) and self.evaluations[-1].epoch >= self.origin.recipe.epochs
