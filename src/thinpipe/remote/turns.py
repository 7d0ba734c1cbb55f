"""Takes turns at a device: sessions compute one action each, in the order in which they asked."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A queue at a device. Whoever has waited longest is next, so none of several sessions can starve."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._taken = False

    def take(self) -> None:
        """Waits for one's turn."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        # No deadline: whoever has the turn computes, and gives it up however that ends.
        mine.wait()

    def give(self) -> None:
        """Gives the turn to the next."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False
