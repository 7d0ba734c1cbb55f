"""Lanes: messages of bytes, in order, from one rank to another over gloo.

``forecast`` tells how a message lies on the wire, ``sending`` and ``receiving`` are the two ends.

What gloo (as of PyTorch 2.13) can and cannot do has shaped this file:

- A wait for a send or a receive can neither be polled (``is_completed`` stays False until somebody waits) nor be called
  off, and one that runs into its time limit breaks every connection of the group. Each lane therefore has a thread that
  waits without a limit, and its users wait for that thread, with deadlines, on a condition.
- A buffer that is let go before its message has passed blocks the whole connection. After ``abort`` the lane's thread
  keeps waiting, asleep, for what was posted; it ends when that has passed, when the peer is gone, or after ``hang_up``.
- A connection that breaks wakes who waits for a message that has not begun to pass, but nobody who waits for the rest
  of one, however often it is broken: that thread sleeps until the process ends. Hang up when nothing is on its way.
- A lane's tags cannot be used again in the same group. After an abort, make new lanes in a new group.
"""

from __future__ import annotations

import atexit
import threading
from datetime import timedelta

import torch
from torch import distributed as dist

from thinpipe.errors import PeerLost
from thinpipe.links.forecast import Forecast
from thinpipe.links.local import Closed

_FOREVER = timedelta(days=365)
_LANES, _WINDOWS = 2**16, 2**8


def hang_up(group: dist.ProcessGroup, peer: int) -> None:
    """Breaks all connections of a group for good, so that the threads of its aborted lanes can end.

    Destroying the group does not wake them, nor does its ``abort``. A receive that runs into its time limit does. Lanes
    hang up by themselves when the interpreter ends; a process that goes on should do it for every group of lanes that
    it has done with. What has not been flushed, and taken by the other end, may be lost.

    Args:
        group: a gloo group that nobody needs any more.
        peer: any other rank of the group.
    """
    try:
        group.recv([torch.empty(1, dtype=torch.uint8)], peer, 2 * _LANES).wait(timedelta(milliseconds=1))
    except RuntimeError:
        return


class Lane:
    """What both ends of a lane share: a thread, and the one reason why there will be no more messages."""

    def __init__(self, group: dist.ProcessGroup, peer: int, lane: int, window: int, deadline: float) -> None:
        if not 0 <= lane < _LANES or not 0 < window < _WINDOWS:
            raise ValueError(f"lane {lane} with window {window}: use a lane below {_LANES}, a window of 1 to 255")
        self._group, self._peer, self._lane, self._window = group, peer, lane, window
        self._head_tag, self._tail_tag = 2 * lane, 2 * lane + 1
        self._deadline = deadline
        self._forecast = Forecast(window)
        self._sequence = 0
        self._failure: Exception | None = None
        self._aborted = False
        self._changed = threading.Condition()

    def abort(self) -> None:
        """Wakes everybody who waits for the lane, now and later, with ``Closed``."""
        with self._changed:
            self._aborted = True
            self._fail(Closed())

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._attend, name=f"thinpipe lane {self._lane}", daemon=True)
        # A thread that is still inside gloo when the interpreter goes down takes the process with it (SIGABRT).
        atexit.register(self._leave)
        self._thread.start()

    def _attend(self) -> None:
        # A call for each piece, so that nothing of it is kept alive while the thread waits for the next.
        while self._attend_one():
            pass
        atexit.unregister(self._leave)

    def _attend_one(self) -> bool:
        """Waits for the oldest thing that was posted; False when nothing is left to wait for."""
        raise NotImplementedError

    def _leave(self) -> None:
        self.abort()
        self._thread.join(0.01)
        if self._thread.is_alive():
            hang_up(self._group, self._peer)
            self._thread.join(1.0)

    def _fail(self, failure: Exception) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def _lost(self, error: RuntimeError) -> PeerLost:
        reason = str(error).splitlines()[0]
        return PeerLost(f"the connection to rank {self._peer} broke (lane {self._lane}): {reason}")

    def _await(self, work: dist.Work) -> None:
        """Waits for gloo, which says in one and the same way that a connection broke, or never was."""
        try:
            work.wait(_FOREVER)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _check(self) -> None:
        """Raises what has failed, if anything; ``Closed`` for everything once the lane was aborted."""
        if self._aborted:
            raise Closed
        if self._failure is not None:
            # Raised in every thread that asks, each time without the frames (and tensors) of the time before.
            raise self._failure.with_traceback(None)
