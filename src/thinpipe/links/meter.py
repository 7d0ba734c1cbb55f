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
        seconds: time since the meter was made or reset, or since the lap began.
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
        """Starts anew from zero, and a new lap with it."""
        with self._lock:
            self._last = self._clock()
            self._all, self._lap = _Tally(self._last), _Tally(self._last)

    def count(self, *, raw: int = 0, encode: float = 0.0, decode: float = 0.0, stall: float = 0.0) -> None:
        """Adds what only the user of the lane knows: bytes before encoding, and seconds."""
        with self._lock:
            for tally in (self._all, self._lap):
                tally.raw += raw
                tally.encode += encode
                tally.decode += decode
                tally.stall += stall

    def count_sent(self, size: int, *, since: float, messages: int = 1) -> None:
        """Adds bytes that were handed over at the time ``since`` and have left by now."""
        with self._lock:
            now = self._clock()
            begin = min(max(since, self._last), now)
            self._last = now
            for tally in (self._all, self._lap):
                tally.sent += size
                tally.messages += messages
                tally.wire += now - begin
                tally.spread(size, begin, now)

    def count_received(self, size: int, *, messages: int = 1) -> None:
        """Adds bytes that have come."""
        with self._lock:
            now = self._clock()
            for tally in (self._all, self._lap):
                tally.received += size
                tally.messages += messages
                tally.spread(size, now, now)

    def snapshot(self) -> Reading:
        """Reads everything at one moment."""
        with self._lock:
            return self._all.read(self._clock())

    def lap(self) -> Reading:
        """Reads what was counted since the last lap, or since the beginning, and starts a new lap.

        Each message belongs to the lap in which it was counted, with all of its bytes and time; so nothing is in two
        laps or in none, and the sums over laps are those of ``snapshot``, which goes on unchanged. A tenth of a second
        that two laps share is a busy one for both: what the one before has sent counts for the peak of the next, or
        laps shorter than a tenth would seem to have none::

            laps     |---------- 1 ----------|---------- 2 ----
            tenths   |  300  |  500  |  100  :  200  |  250  |      peaks: 5000 bytes a second, and 3000
        """
        with self._lock:
            now = self._clock()
            reading = self._lap.read(now)
            self._lap = self._lap.follower(now)
            return reading


class _Tally:
    """What was counted since a moment; its owner has the lock."""

    def __init__(self, start: float) -> None:
        self.sent = self.received = self.raw = self.messages = 0
        self.encode = self.wire = self.decode = self.stall = 0.0
        self._start = start
        self._slot, self._in_slot, self._peak = -1, 0.0, 0.0

    def follower(self, now: float) -> _Tally:
        """Makes one that goes on from here, in the same tenth of a second if that is not over."""
        made = _Tally(now)
        if self._slot == int(now / _WINDOW):
            made._slot, made._in_slot = self._slot, self._in_slot
        return made

    def read(self, now: float) -> Reading:
        """Says it all."""
        seconds = now - self._start
        return Reading(
            sent=self.sent,
            received=self.received,
            raw=self.raw,
            messages=self.messages,
            encode=self.encode,
            wire=self.wire,
            decode=self.decode,
            stall=self.stall,
            seconds=seconds,
            average=(self.sent + self.received) / seconds if seconds > 0 else 0.0,
            peak=max(self._peak, self._in_slot) / _WINDOW,
        )

    def spread(self, size: int, begin: float, end: float) -> None:
        """Spreads bytes over the tenths of a second that they took."""
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
