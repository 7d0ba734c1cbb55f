"""How a run is watched: live in a terminal, or by a line for each epoch anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from thinpipe.finite import number_text
from thinpipe.train.log import EvaluationLine, StepLine
from thinpipe.train.loop import Watcher
from thinpipe.train.pace import Pace
from thinpipe.train.panel_live import Display
from thinpipe.train.panel_status import metrics_text


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

    def evaluating(self, epoch: int) -> None:
        """Waits for what comes out of it."""

    def evaluated(self, line: EvaluationLine) -> None:
        """Prints the epoch."""
        trained = f"loss {number_text(self._loss / self._rows, '.4f')}  " if self._rows else ""
        tested = f"test loss {number_text(line.loss, '.4f')}"
        self._console.print(
            f"epoch {line.epoch}/{self._epochs}  {trained}{tested}  {metrics_text(line)}  {self._pace}".rstrip(),
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

    def evaluating(self, epoch: int) -> None:
        """Tells all that an evaluation begins."""
        for watcher in self._watchers:
            watcher.evaluating(epoch)

    def evaluated(self, line: EvaluationLine) -> None:
        """Tells all of an evaluation."""
        for watcher in self._watchers:
            watcher.evaluated(line)


def is_live(console: Console) -> bool:
    """Tells whether a picture can be drawn again in the same place."""
    return console.is_terminal and not console.is_dumb_terminal


@contextmanager
def watching(
    console: Console, *, epochs: int, total: int, done: int, notice: Callable[[], str] = str
) -> Iterator[Watcher]:
    """Gives whoever shows a run on this console.

    Args:
        console: where.
        epochs: the number of epochs.
        total: the number of steps.
        done: how many of them were taken before.
        notice: asked by a live display for something to be said now (default: there is never anything).
    """
    if not is_live(console):
        yield Lines(console, epochs)
        return
    with Display(console, epochs=epochs, total=total, done=done, notice=notice) as display:
        yield display
