"""Ctrl-C and SIGTERM, taken as a wish: the step is finished, and everything saved."""

from __future__ import annotations

import os
import signal
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
