"""A run as it is shown in a terminal: a bar, the loss and the metrics, and the panel of its pipeline.

::

    thread of the run    step ── step ── step ── ... ── evaluation ── step ──       only counts, and waits for nobody
    another                   show        show    show     show         show        a few times a second

What is only shown never ends a run: an error there, such as that of a terminal that was closed, ends the display.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from thinpipe.train.log import EvaluationLine, StepLine
from thinpipe.train.panel import Panel
from thinpipe.train.panel_status import Status

_log = logging.getLogger("thinpipe")

_PAUSE = 0.25
"""Seconds from one picture to the next."""


class Display:
    """Shows a run while it is entered, and leaves the terminal as it was.

    Args:
        console: a terminal.
        epochs: the number of epochs.
        total: the number of steps.
        done: how many of them were taken before.
        notice: asked for something to be said instead of the loss; an empty text for nothing.
    """

    def __init__(self, console: Console, *, epochs: int, total: int, done: int, notice: Callable[[], str]) -> None:
        self._epochs, self._status = epochs, Status(notice)
        columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, expand=True)
        self._task: TaskID = self._progress.add_task(f"{epochs} epochs", total=total, completed=done)
        self._panel = Panel()
        picture = Group(self._progress, self._status, self._panel)
        self._live = Live(picture, console=console, auto_refresh=False, transient=True)
        self._thread = threading.Thread(target=self._show, name="thinpipe-display", daemon=True)
        self._over = threading.Event()

    def __enter__(self) -> Self:
        with self._trying():
            self._live.start(refresh=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._trying():
            self._live.stop()

    def stepped(self, line: StepLine) -> None:
        """Moves the bar; it may go back, if the run did."""
        if self._over.is_set():
            return
        with self._trying():
            self._status.stepped(line)
            self._panel.count(line)
            description = f"epoch {line.epoch + 1}/{self._epochs}"
            self._progress.update(self._task, completed=line.step + 1, description=description)

    def evaluating(self, epoch: int) -> None:
        """Says that no step is taken for a while."""
        self._status.evaluating(epoch)

    def evaluated(self, line: EvaluationLine) -> None:
        """Shows the metrics from now on."""
        self._status.evaluated(line)

    def _show(self) -> None:
        with self._trying():
            while not self._over.wait(_PAUSE):
                self._live.refresh()

    @contextmanager
    def _trying(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._over.set()
            # First of all, so that the warning is not sent through what has failed.
            with suppress(Exception):
                self._live.stop()
            _log.warning("the run goes on, but is no longer shown: %s", str(error) or type(error).__name__)
