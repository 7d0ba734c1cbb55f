"""A run as it is read from its folder, whether it is finished, interrupted or still going on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from thinpipe.errors import PacketError
from thinpipe.remote.cost import StepCost
from thinpipe.train.log import EvaluationLine, Line, NoteLine, Origin, RunError, RunFolder, StepLine

_NUMBERS: dict[type[Line], tuple[str, ...]] = {
    StepLine: ("step", "epoch", "rows", "loss", "seconds"),
    EvaluationLine: ("epoch", "loss", "accuracy"),
    NoteLine: ("step",),
}


@dataclass(frozen=True)
class Run:
    """A run.

    Args:
        path: its folder.
        origin: what it was made from.
        steps: the lines of its steps, in order.
        evaluations: the lines of its evaluations, in order.
        notes: what else its log says, in order (default: nothing).
    """

    path: Path
    origin: Origin
    steps: list[StepLine]
    evaluations: list[EvaluationLine]
    notes: list[NoteLine] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Run:
        """Reads a folder.

        Raises:
            RunError: it has no run, or a damaged one.
        """
        folder = RunFolder(path)
        origin, lines = folder.origin(), list(folder.lines())
        for line in lines:
            _verify(path, line)
        steps = [line for line in lines if isinstance(line, StepLine)]
        tests = [line for line in lines if isinstance(line, EvaluationLine)]
        return cls(path, origin, steps, tests, [line for line in lines if isinstance(line, NoteLine)])

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.path.resolve().name

    @property
    def command(self) -> str:
        """The line that made it; of ranks with the program that starts them, which no rank sees of itself."""
        said, ranks = self.origin.command, self.origin.settings.ranks
        return said if ranks is None else f"torchrun --nproc-per-node {ranks} -m {said}"

    def costs(self, steps: Sequence[StepLine]) -> list[StepCost]:
        """Lists what steps cost, those of which the log says nothing left out.

        Raises:
            RunError: a cost makes no sense.
        """
        try:
            return [StepCost.from_json(line.cost) for line in steps if line.cost]
        except PacketError as error:
            raise RunError(f"the log of {self.path} is damaged: {error}") from error

    @property
    def finished(self) -> bool:
        """Whether it came to the end of its epochs."""
        return bool(self.evaluations) and self.evaluations[-1].epoch >= self.origin.recipe.epochs


def _verify(path: Path, line: Line) -> None:
    for name in _NUMBERS[type(line)]:
        value = getattr(line, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RunError(f"the log of {path} is damaged: {name} of step {line.step!r:.20} is {value!r:.50}")
