"""How a run is watched: by a bar in a terminal, or by a line for each epoch anywhere else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from thinpipe.train.log import EvaluationLine, StepLine
from thinpipe.train.loop import Watcher
from thinpipe.train.pace import Pace


class Bar:
    """A progress bar with the last loss, the last metrics and the speeds.

    Args:
        progress: where it is shown.
        total: the number of steps.
        done: how many of them were taken before.
    """

    def __init__(self, progress: Progress, total: int, done: int) -> None:
        self._progress, self._pace, self._metrics = progress, Pace(), ""
        self._task: TaskID = progress.add_task("", total=total, completed=done)

    def stepped(self, line: StepLine) -> None:
        """Moves the bar; it may go back, if the run did."""
        self._pace.count(line)
        text = f"epoch {line.epoch + 1}  loss {line.loss:.4f}{self._metrics}  {self._pace}"
        self._progress.update(self._task, completed=line.step + 1, description=text)

    def evaluated(self, line: EvaluationLine) -> None:
        """Shows the metrics from now on."""
        self._metrics = f"  {_metrics(line)}"


class Lines:
    """A line for each epoch, for files and pipes.

    Args:
        console: where they are printed.
        epochs: the number of epochs.
    """

    def __init__(self, console: Console, epochs: int) -> None:
        self._console, self._epochs, self._pace = console, epochs, Pace()
        self._loss = self._rows = 0.0

    def stepped(self, line: StepLine) -> None:
        """Adds the step to its epoch."""
        self._pace.count(line)
        self._loss += line.loss * line.rows
        self._rows += line.rows

    def evaluated(self, line: EvaluationLine) -> None:
        """Prints the epoch."""
        trained = f"loss {self._loss / self._rows:.4f}  " if self._rows else ""
        self._console.print(
            f"epoch {line.epoch}/{self._epochs}  {trained}test loss {line.loss:.4f}  {_metrics(line)}  "
            f"{self._pace}".rstrip(),
            soft_wrap=True,
        )
        self._loss = self._rows = 0.0


class Several:
    """Somebody who tells others.

    Args:
        watchers: who is told, in this order.
    """

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def stepped(self, line: StepLine) -> None:
        """Tells all of a step."""
        for watcher in self._watchers:
            watcher.stepped(line)

    def evaluated(self, line: EvaluationLine) -> None:
        """Tells all of an evaluation."""
        for watcher in self._watchers:
            watcher.evaluated(line)


@contextmanager
def watching(console: Console, *, epochs: int, total: int, done: int) -> Iterator[Watcher]:
    """Gives whoever shows a run on this console."""
    if not console.is_terminal:
        yield Lines(console, epochs)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        yield Bar(progress, total, done)


def _metrics(line: EvaluationLine) -> str:
    mcc = "" if line.mcc is None else f"  MCC {line.mcc:.4f}"
    return f"accuracy {line.accuracy:.2%}{mcc}"
