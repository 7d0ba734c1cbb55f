"""The numbers of a run that people quote."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from thinpipe.remote.cost import summary
from thinpipe.report.run import Run
from thinpipe.train.log import StepLine


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A run in numbers; None where there is nothing to tell yet.

    Args:
        finished: whether it came to the end of its epochs.
        steps: that were taken.
        epochs: that were finished.
        accuracy: on the whole test set, after the last finished epoch.
        best_accuracy: the best one of all epochs.
        mcc: Matthews' correlation on the whole test set, after the last finished epoch; of texts only.
        best_mcc: the best one of all epochs.
        test_loss: on the test set, after the last finished epoch.
        train_loss: the mean over the last epoch.
        seconds: for a batch, the median; the first one and those that are not full are left out.
        samples_per_second: trained, over the time of all steps.
        network: what a batch cost on both sides and between them, by the names of ``remote.cost.summary``; None where
            nothing crossed a network.
    """

    finished: bool
    steps: int
    epochs: int
    accuracy: float | None
    best_accuracy: float | None
    mcc: float | None
    best_mcc: float | None
    test_loss: float | None
    train_loss: float | None
    seconds: float | None
    samples_per_second: float | None
    network: dict[str, float] | None

    @classmethod
    def of(cls, run: Run) -> Figures:
        """Computes the figures of a run.

        Raises:
            RunError: a step's cost makes no sense.
        """
        steps, tests = run.steps, run.evaluations
        usual = usual_steps(run)
        last = [line for line in steps if line.epoch == steps[-1].epoch]
        costs = run.costs(usual)
        return cls(
            finished=run.finished,
            steps=len(steps),
            epochs=tests[-1].epoch if tests else 0,
            accuracy=tests[-1].accuracy if tests else None,
            best_accuracy=max(line.accuracy for line in tests) if tests else None,
            mcc=tests[-1].mcc if tests else None,
            best_mcc=max((line.mcc for line in tests if line.mcc is not None), default=None),
            test_loss=tests[-1].loss if tests else None,
            train_loss=_share(sum(line.loss * line.rows for line in last), sum(line.rows for line in last)),
            seconds=statistics.median(line.seconds for line in usual) if usual else None,
            samples_per_second=_share(sum(line.rows for line in steps), sum(line.seconds for line in steps)),
            network=summary(costs) if costs else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values."""
        return asdict(self)


def usual_steps(run: Run) -> list[StepLine]:
    """Lists the steps that count where time and bytes are measured.

    A batch that is not full is an odd one among the others, and the first one pays for everything's start.
    """
    full = [line for line in run.steps if line.rows == run.origin.recipe.batch] or run.steps
    return full[1:] or full


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
