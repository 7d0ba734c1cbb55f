"""When a run that one process trains is saved: after so many steps, or as often as costs next to nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS = 20.0
"""The least time between two saved states, where nobody says after how many steps."""
SHARE = 20
"""Saving takes at most one part in so many of the time."""


class Due:
    """Tells after a step whether it is time to save.

    Args:
        every: steps between two saved states; None for some seconds, and the more the longer it takes to save.
        clock: in seconds (default: that of the system).
    """

    def __init__(self, every: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._next = clock() + SECONDS

    def after(self, step: int) -> bool:
        """Tells whether the state is to be saved, after so many steps."""
        return self._clock() >= self._next if self._every is None else step % self._every == 0

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Surrounds the saving of a state."""
        began = self._clock()
        yield
        now = self._clock()
        self._next = now + max(SECONDS, SHARE * (now - began))
