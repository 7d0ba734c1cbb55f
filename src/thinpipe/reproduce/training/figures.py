"""The figures of a trained row, from what its run left behind: a log, and what crossed the cuts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thinpipe.reproduce.training.crossed import Crossing, read_crossed
from thinpipe.train.log import EvaluationLine, NoteLine, RunFolder, StepLine
from thinpipe.train.pace import bytes_of

CROSSED = "crossed.json"


@dataclass(frozen=True)
class Ran:
    """What a run left behind.

    Args:
        steps: in their order.
        tests: one after each epoch.
        cuts: what crossed each; or one entry, what crossed both.
        said: what else its log says (default: nothing).
    """

    steps: Sequence[StepLine]
    tests: Sequence[EvaluationLine]
    cuts: Sequence[Crossing]
    said: Sequence[NoteLine] = ()

    @classmethod
    def read(cls, path: Path) -> Ran:
        """Reads it from the folder of a run."""
        lines = list(RunFolder(path).lines())
        return cls(
            [line for line in lines if isinstance(line, StepLine)],
            [line for line in lines if isinstance(line, EvaluationLine)],
            read_crossed(path / CROSSED),
            [line for line in lines if isinstance(line, NoteLine)],
        )

    @property
    def train_rows(self) -> int:
        """How many samples an epoch has."""
        return sum(line.rows for line in self.steps if line.epoch == 0)

    def results(self) -> dict[str, float | None]:
        """Lists what people quote."""
        last, whole = self.tests[-1], sum(self.cuts, Crossing())
        correlations = [line.mcc for line in self.tests if line.mcc is not None]
        rows, seconds = sum(line.rows for line in self.steps), sum(line.seconds for line in self.steps)
        # One entry is both cuts together, as a client counts them.
        ratios = {f"cut_{number}": cut for number, cut in enumerate(self.cuts, 1) if len(self.cuts) > 1}
        return {
            "accuracy": last.accuracy,
            "best_accuracy": max(line.accuracy for line in self.tests),
            "mcc": last.mcc,
            "best_mcc": max(correlations, default=None),
            "ratio": whole.ratio,
            "float32_ratio": whole.float32_ratio,
            **{f"ratio_{name}": cut.ratio for name, cut in ratios.items()},
            **{f"float32_ratio_{name}": cut.float32_ratio for name, cut in ratios.items()},
            "bytes_per_sample": sum(bytes_of(line.cost) for line in self.steps) / rows,
            "samples_per_second": rows / seconds if seconds else None,
            "seconds_per_batch": statistics.median(line.seconds for line in self.steps),
            "seconds": seconds + sum(line.seconds for line in self.tests),
            "epochs": last.epoch,
            "steps": len(self.steps),
            "train_rows": self.train_rows,
            "test_rows": last.rows,
        }

    def samples(self) -> dict[str, list[float]]:
        """Lists the curves by epoch; a loss that was not finite has none, for JSON has no word for it."""
        trained = [self._train_loss(epoch) for epoch in range(len(self.tests))]
        curves: dict[str, list[float]] = {
            "accuracy": [line.accuracy for line in self.tests],
            "mcc": [line.mcc for line in self.tests if line.mcc is not None],
            "train_loss": trained,
            "test_loss": [line.loss for line in self.tests],
            "seconds": [self._seconds(epoch) for epoch in range(len(self.tests))],
            "grad_norm": [statistics.median(self._norms(epoch)) for epoch in range(len(self.tests))],
            "grad_norm_largest": [max(self._norms(epoch)) for epoch in range(len(self.tests))],
        }
        return {name: curve for name, curve in curves.items() if curve and all(map(math.isfinite, curve))}

    def notes(self) -> list[str]:
        """Tells what a reader must know."""
        wild = next((line.epoch for line in self.steps if not math.isfinite(line.loss)), None)
        diverged = [] if wild is None else [f"the loss was not finite, first in epoch {wild + 1}"]
        return [*(line.text for line in self.said), *diverged]

    def _train_loss(self, epoch: int) -> float:
        own = [line for line in self.steps if line.epoch == epoch]
        return sum(line.loss * line.rows for line in own) / sum(line.rows for line in own)

    def _norms(self, epoch: int) -> list[float]:
        """Lists the norms of all gradients, step by step; NaN where none is logged."""
        return [
            math.nan if line.grad_norm is None else line.grad_norm for line in self.steps if line.epoch == epoch
        ] or [math.nan]

    def _seconds(self, epoch: int) -> float:
        return sum(line.seconds for line in self.steps if line.epoch == epoch)
