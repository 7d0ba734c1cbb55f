"""An emulated thin link, for machines where the kernel's own traffic shaping is not to be had.

The sender holds each message back until the moment it would have arrived; to the receiver the link looks slow. All
lanes of one direction between two ranks share one throttle, as they would share the cable::

    handed over   a b c
    on the cable  |aaaa|bb|cccccc|           one after the other at the rate, no bursts
    visible            >----a >----b  ...    `delay` after the last bit left
"""

from __future__ import annotations

import heapq
import itertools
import re
import threading
import time
from collections.abc import Callable

from thinpipe import arguments
from thinpipe.errors import ArgumentError

_IDLE = 1.0
_UNITS = {"": 1.0, "bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def parse_rate(text: str) -> float:
    """Reads a rate such as ``"50mbit"``, ``"1.5gbit"`` or ``"64000"`` as bits a second.

    Raises:
        ValueError: the text is no rate.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(text).lower())
    if match is None or match[2] not in _UNITS or float(match[1]) == 0:
        raise ArgumentError(
            f"{text!r} is not a rate; write a number above zero followed by kbit, mbit, gbit or nothing (bits a second)"
        )
    return float(match[1]) * _UNITS[match[2]]


class Throttle:
    """Lets messages through at the rate and with the delay of a thinner link.

    A message leaves the sender's queue when it is handed over, whether or not the other end has room for it: an
    emulated link is up to a window of messages kinder to a slow receiver than a real one.

    Args:
        bits_per_second: how much fits through; None for a link that only delays.
        delay: seconds from the last bit's departure to its arrival.
    """

    def __init__(self, bits_per_second: float | None, delay: float = 0.0) -> None:
        if bits_per_second is not None:
            bits_per_second = arguments.number("the rate of a link in bits a second", bits_per_second, above=0)
        delay = arguments.number("the delay of a link in seconds", delay)
        self._seconds_per_byte = 0.0 if bits_per_second is None else 8 / bits_per_second
        self._delay = delay
        self._free_at = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def deliver(self, size: int, action: Callable[[], None], *, asked_after: float = 0.0) -> float:
        """Calls ``action`` from a thread of the throttle when a message of ``size`` bytes would have arrived.

        Args:
            size: bytes on the wire.
            action: makes the message visible; must not block nor raise.
            asked_after: for a message that the receiver asks for when another one has arrived: that one's arrival.
                The question needs a delay to come back and the answer another.

        Returns:
            When it will arrive, in seconds of ``time.monotonic``.
        """
        with self._changed:
            took = size * self._seconds_per_byte
            self._free_at = max(self._free_at, time.monotonic()) + took
            arrival = max(self._free_at, asked_after + self._delay + took) + self._delay
            heapq.heappush(self._due, (arrival, next(self._order), action))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="thinpipe throttle", daemon=True)
                self._thread.start()
            self._changed.notify()
        return arrival

    def _run(self) -> None:
        while (action := self._next()) is not None:
            action()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while True:
                if not self._due:
                    # A thread that ends when nothing passes needs nobody to close the throttle.
                    if not self._changed.wait_for(lambda: self._due, _IDLE):
                        self._thread = None
                        return None
                    continue
                wait = self._due[0][0] - time.monotonic()
                if wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait)
