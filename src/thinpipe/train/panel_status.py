"""How a run stands, in one line."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import RenderResult
from rich.text import Text

from thinpipe.finite import number_text
from thinpipe.train.log import EvaluationLine, StepLine
from thinpipe.train.pace import Pace


class Status:
    """The last loss, the last metrics, and what is being done: how fast, or what else.

    Args:
        notice: asked for something that is to be said instead; an empty text for nothing.
    """

    def __init__(self, notice: Callable[[], str]) -> None:
        self._notice, self._pace = notice, Pace()
        self._loss = self._metrics = self._doing = ""

    def stepped(self, line: StepLine) -> None:
        """Has a loss to tell."""
        self._pace.count(line)
        self._loss, self._doing = f"loss {number_text(line.loss, '.4f')}", ""

    def evaluating(self, epoch: int) -> None:
        """Says so."""
        self._doing = f"evaluating after epoch {epoch}"

    def evaluated(self, line: EvaluationLine) -> None:
        """Has metrics to tell."""
        self._metrics, self._doing = metrics_text(line), ""

    def __str__(self) -> str:
        said = (self._loss, self._metrics, self._doing or str(self._pace))
        return self._notice() or "  ".join(filter(None, said)) or "waiting for the first step"

    def __rich_console__(self, *_: object) -> RenderResult:
        yield Text(str(self), no_wrap=True, overflow="ellipsis")


def metrics_text(line: EvaluationLine) -> str:
    """Says the metrics of an evaluation."""
    mcc = "" if line.mcc is None else f"  MCC {line.mcc:.4f}"
    return f"accuracy {line.accuracy:.2%}{mcc}"
