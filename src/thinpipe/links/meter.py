"""What one lane has carried and where its time went."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_WINDOW = 0.1


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of a meter at one moment; bytes are bytes, times are seconds, rates are bytes a second.

    Attributes:
        sent: bytes handed to the network, with headers and padding.
        received: bytes that came, with headers and padding.
        raw: bytes of the tensors before they were encoded or after they were decoded.
        messages: how many messages were sent or received.
        encode: time spent encoding.
        wire: time during which something was under way; messages that overlap count once.
        decode: time spent decoding.
        stall: time spent waiting for the lane.
        seconds: time since the meter was made or reset.
        average: bytes a second over ``seconds``.
        peak: bytes a second in the busiest tenth of a second. What was sent is spread over the time that it took;
            what was received counts when it is complete, so that a slow link's peak is told by its sending end.
    """

    sent: int
    received: int
    raw: int
    messages: int
    encode: float
    wire: float
    decode: float
    stall: float
    seconds: float
    average: float
    peak: float


class Meter:
    """Counts what one lane carries; any thread may count and read.

    Args:
        clock: what tells the time; the lane's own stamps must come from the same one.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Starts anew from zero."""
        with self._lock:
            self._sent = self._received = self._raw = self._messages = 0
            self._encode = self._wire = self._decode = self._stall = 0.0
            self._start = self._last = self._clock()
            self._slot, self._in_slot, self._peak = -1, 0.0, 0.0

    def count(self, *, raw: int = 0, encode: float = 0.0, decode: float = 0.0, stall: float = 0.0) -> None:
        """Adds what only the user of the lane knows: bytes before encoding, and seconds."""
        with self._lock:
            self._raw += raw
            self._encode += encode
            self._decode += decode
            self._stall += stall

    def count_sent(self, size: int, *, since: float, messages: int = 1) -> None:
        """Adds bytes that were handed over at the time ``since`` and have left by now."""
        with self._lock:
            now = self._clock()
            begin = min(max(since, self._last), now)
            self._sent += size
            self._messages += messages
            self._wire += now - begin
            self._last = now
            self._spread(size, begin, now)

    def count_received(self, size: int, *, messages: int = 1) -> None:
        """Adds bytes that have come."""
        with self._lock:
            now = self._clock()
            self._received += size
            self._messages += messages
            self._spread(size, now, now)

    def snapshot(self) -> Reading:
        """Reads everything at one moment."""
        with self._lock:
            seconds = self._clock() - self._start
            return Reading(
                sent=self._sent,
                received=self._received,
                raw=self._raw,
                messages=self._messages,
                encode=self._encode,
                wire=self._wire,
                decode=self._decode,
                stall=self._stall,
                seconds=seconds,
                average=(self._sent + self._received) / seconds if seconds > 0 else 0.0,
                peak=max(self._peak, self._in_slot) / _WINDOW,
            )

    def _spread(self, size: int, begin: float, end: float) -> None:
        first, last = int(begin / _WINDOW), int(end / _WINDOW)
        if first == last:
            self._fill(first, size)
            return
        density = size / (end - begin)
        self._fill(first, density * ((first + 1) * _WINDOW - begin))
        if last - first > 1:  # the slots between are all alike
            self._fill(last - 1, density * _WINDOW)
        self._fill(last, density * (end - last * _WINDOW))

    def _fill(self, slot: int, size: float) -> None:
        if slot != self._slot:
            self._peak = max(self._peak, self._in_slot)
            self._slot, self._in_slot = slot, 0.0
        self._in_slot += size
