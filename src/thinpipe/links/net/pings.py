"""Pings: how one end knows that the other is alive, and what its clock shows."""

from __future__ import annotations

import math
import struct
import time
from collections import deque

from thinpipe.errors import PacketError

_TIME, _TIMES = struct.Struct("<d"), struct.Struct("<dd")
_EAGER, _SAMPLES = 4, 32


class Pings:
    """Asks the other end for its time, again and again.

    Args:
        silence: seconds after which an end that gave no sign of life is given up; it is asked five times before.
    """

    def __init__(self, silence: float) -> None:
        self._every = min(2.0, silence / 5)
        self._asked: float | None = None
        self._next = time.monotonic()
        self.samples: deque[tuple[float, float, float]] = deque(maxlen=_SAMPLES)

    def ask(self, now: float) -> bytes | None:
        """Gives a question, if it is time for one."""
        if now < self._next:
            return None
        # The first few in quick succession: a new connection's trace should not have to wait for its clock.
        self._next = now + (self._every if len(self.samples) >= _EAGER else min(0.1, self._every))
        self._asked = time.perf_counter()
        return _TIME.pack(self._asked)

    def answer(self, question: bytes) -> bytes:
        """Answers a question."""
        return _TIMES.pack(_number(_TIME, question)[0], time.perf_counter())

    def note(self, answer: bytes) -> None:
        """Takes an answer; one to an older question tells less, and nothing if nobody asked."""
        asked, there = _number(_TIMES, answer)
        if asked == self._asked:
            self._asked = None
            self.samples.append((asked, there, time.perf_counter()))


def _number(fields: struct.Struct, body: bytes) -> tuple[float, ...]:
    if len(body) != fields.size or not all(map(math.isfinite, values := fields.unpack(body))):
        raise PacketError(f"a ping or pong has {fields.size} bytes of finite numbers, got {body!r}")
    return values
