"""A process that does one item: it is asked to stop and saves, or is ended; what it says goes to a file."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from thinpipe.reproduce.queue.meter import Tail
from thinpipe.reproduce.queue.order import Item

_NO_MEMORY = ("has not enough memory", "out of memory", "OutOfMemoryError")
_TAIL = 4_000


class Child:
    """A process that does one item.

    It is in a group of its own: Ctrl-C in a terminal reaches the queue alone, which asks each child to stop once. A
    second signal would end a child before it has saved.

    Args:
        item: what it does.
        words: its command line.
        said: the file that gets what it prints.
        log: of its run; None if it has none.
        epochs: that it trains for (default: it trains nothing).
    """

    def __init__(self, item: Item, words: Sequence[str], *, said: Path, log: Path | None, epochs: int = 0) -> None:
        self.item, self.epochs = item, epochs
        self.tail = None if log is None else Tail(log)
        self.is_asked = self.is_killed = False
        self._said = said
        said.parent.mkdir(parents=True, exist_ok=True)
        with said.open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, process_group=0
            )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def has_stepped(self) -> bool:
        """Whether it has taken a step."""
        return self.tail is not None and self.tail.steps > 0

    @property
    def is_training(self) -> bool:
        """Whether it has steps before it: it was not asked to stop, and is not through."""
        return self.tail is not None and not self.is_asked and self.tail.tested < self.epochs

    def status(self) -> int | None:
        """Tells how it ended; None as long as it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Asks it to save and end; once, however often this is called."""
        if not self.is_asked:
            self.is_asked = True
            self._process.terminate()

    def kill(self) -> None:
        """Ends it; what it saved last stays."""
        self.is_killed = True
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # and what it has begun itself
        self._process.wait()

    def last_words(self, lines: int = 12) -> str:
        """Returns the end of what it printed."""
        text = self._said.read_bytes()[-_TAIL:].decode(errors="replace")
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])

    def lacked_memory(self) -> bool:
        """Tells whether it ended for want of memory."""
        return any(word in self.last_words(40) for word in _NO_MEMORY)
