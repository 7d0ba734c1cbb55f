"""Ctrl-C and SIGTERM, taken as a wish: the step is finished, and everything saved."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any, Self


class Stop:
    """Remembers that somebody wants the process to end, while it is entered; for the main thread.

    The first signal is a wish. With the second one nobody wants to wait: it acts as it would have without this.

    Args:
        notice: what is said when the first one comes (default: nothing).
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, notice: str | None = None) -> None:
        self._notice = notice
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def wanted(self) -> bool:
        """Whether a signal has come."""
        return self.signal is not None

    @property
    def status(self) -> int:
        """The exit status that tells a shell which signal it was."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> Self:
        for number in self._SIGNALS:
            self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._give_back()

    def _remember(self, number: int, _: FrameType | None) -> None:
        self.signal = number
        self._give_back()
        if self._notice is not None:
            # Not by print: a signal may come in the middle of one.
            os.write(2, f"{self._notice}\n".encode())

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()


class SharedStop(Stop):
    """A wish that all ranks have heard of before any of them stops, so that all stop after the same step.

    Each rank says after every step which signal it had, and all hear what all have said::

        rank 0   step 7 ─┬─ step 8 ─┬─ stops          a signal comes to rank 1 in its step 8:
        rank 1   step 7 ─┴─ step 8 ─┴─ stops          nobody begins step 9

    A second signal is no command: torchrun repeats to its ranks what it was sent itself, and kills those who are still
    there half a minute later.
    """

    def __init__(self, notice: str | None = None) -> None:
        super().__init__(notice)
        self.own = 0

    def heard(self, signals: Iterable[int]) -> None:
        """Is told the signals of all ranks; 0 for none."""
        self.signal = max(signals) or None

    def _remember(self, number: int, _: FrameType | None) -> None:
        first, self.own = not self.own, number
        if first and self._notice is not None:
            os.write(2, f"{self._notice}\n".encode())
