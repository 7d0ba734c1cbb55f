"""A run for TensorBoard: its curves as events, in a folder beside the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from thinpipe.train.log import EvaluationLine, StepLine
from thinpipe.train.pace import bytes_of

_log = logging.getLogger("thinpipe")
_ABSENT = "no TensorBoard events are written: tensorboard is not installed; pip install 'thinpipe[board]'"


class Board:
    """Writes scalars as they come.

    Args:
        writer: a ``SummaryWriter``.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._failed = False

    @classmethod
    def opened(cls, folder: Path, *, committed: int, console: Console) -> Board | None:
        """Opens the events of a run; None, and a line that says why, where TensorBoard is not installed.

        Args:
            folder: gets the files.
            committed: how many steps the run has; TensorBoard forgets what was said of later ones.
            console: told if there is no TensorBoard.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter  # not everybody has it, and it takes a second to import
        except ImportError:
            console.print(_ABSENT, markup=False, soft_wrap=True)
            return None
        return cls(SummaryWriter(str(folder), purge_step=committed or None))

    def stepped(self, line: StepLine) -> None:
        """Writes a step."""
        scalars: dict[str, float | None] = {"train/loss": line.loss, "train/lr": line.lr}
        if line.seconds:
            scalars["speed/samples_per_second"] = line.rows / line.seconds
            scalars["speed/bytes_per_second"] = bytes_of(line.cost) / line.seconds if line.cost else None
        self._write(scalars, line.step + 1)

    def evaluating(self, epoch: int) -> None:
        """Has nothing to write yet."""

    def evaluated(self, line: EvaluationLine) -> None:
        """Writes an evaluation, and everything to the disk."""
        self._write({"test/loss": line.loss, "test/accuracy": line.accuracy, "test/mcc": line.mcc}, line.step)
        self._try(lambda: self._writer.flush())

    def close(self) -> None:
        """Writes what is left."""
        self._try(lambda: self._writer.close())

    def _write(self, scalars: dict[str, float | None], step: int) -> None:
        for name, value in scalars.items():
            if value is not None:
                self._try(partial(self._writer.add_scalar, name, value, step))

    def _try(self, write: Callable[[], None]) -> None:
        """Writes, until a disk is full: a run does not end for its curves, which are in its log as well."""
        if self._failed:
            return
        try:
            write()
        except OSError as error:
            self._failed = True
            _log.warning("no more TensorBoard events are written: %s; log.jsonl has everything", error.strerror)
