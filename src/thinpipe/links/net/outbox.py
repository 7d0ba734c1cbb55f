"""What waits at one end of a connection to leave it.

::

    tell ──► words ──┐                            words first, whatever waits; then messages as they were sent, cut
    send ──► loads ──┴─ one piece ─┬────────────► socket       into pieces at the last moment
                                   └─ throttle ─► socket       (an emulated thin link: fed just before it runs dry)
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from thinpipe.errors import StallError
from thinpipe.links.net.pieces import HEAD, Head, Kind, cuts, whole
from thinpipe.links.throttle import Throttle

MOST_WAITING = 8 * 1024 * 1024
_MOST_WORDS = 4 * 1024 * 1024
# A throttle is fed this many seconds before it runs dry; what it was fed, no word can overtake.
_LEAD = 0.005


@dataclass(eq=False)
class Load:
    """A message that waits to leave.

    Args:
        content: all of it.
        lane: the lane it goes on.
        number: gives the message's number in its lane, when its first piece is made.
        since: when it was handed over.
        left: called as each piece was taken by the socket, with its size and whether it was the last.
        urgent: whether it goes before all that are not, even if one of them has begun to leave.
    """

    content: memoryview
    lane: int
    number: Callable[[], int]
    since: float
    left: Callable[[int, bool], None]
    urgent: bool = False
    pieces: Iterator[tuple[int, int]] = field(init=False)
    begun: int | None = None

    def __post_init__(self) -> None:
        self.pieces = cuts(len(self.content))


class Leaving(NamedTuple):
    """A piece that is next to leave."""

    head: bytes
    body: bytes | memoryview
    since: float
    load: Load | None
    is_last: bool

    @property
    def size(self) -> int:
        """Its bytes on the wire."""
        return HEAD + len(self.body)


class Outbox:
    """Holds what waits; any thread may put something in, only the I/O thread takes it out.

    Args:
        changed: guards the outbox, and is notified when there is room again.
        wake: has the I/O thread look.
        throttle: makes the connection as slow as a thinner link; None for full speed.
    """

    def __init__(self, changed: threading.Condition, wake: Callable[[], None], throttle: Throttle | None) -> None:
        self._changed, self._wake, self._throttle = changed, wake, throttle
        self._words: deque[Leaving] = deque()
        self._word_bytes = 0
        self._loads: deque[Load] = deque()
        self._next: Leaving | None = None
        # What has passed the throttle, and how many pieces have not yet.
        self._passed: deque[Leaving] = deque()
        self._passing = 0
        self._feed_at = 0.0
        self._delay = 0.0 if throttle is None else throttle.deliver(0, _nothing) - time.monotonic()
        self._ended = False
        self._waiting: dict[int, int] = {}
        self.moved_at = time.monotonic()

    # -- any thread ----------------------------------------------------------------------------------------------------

    def slow_down(self, throttle: Throttle) -> None:
        """Makes the connection as slow as a thinner link from now on."""
        with self._changed:
            self._throttle = throttle
            self._delay = throttle.deliver(0, _nothing) - time.monotonic()
            if self._next is not None:  # cut already, and on its way
                self._passed.append(self._next)
                self._next = None
        self._wake()

    def put_word(self, kind: Kind, body: bytes) -> None:
        """Puts in something that is one piece and goes before all data.

        Raises:
            StallError: the other end has left too many of them waiting.
        """
        with self._changed:
            if self._ended:
                return
            if self._word_bytes + len(body) > _MOST_WORDS:
                raise StallError(f"{self._word_bytes} bytes of words wait to be sent; the other end does not read them")
            self._begin()
            self._words.append(Leaving(whole(kind, body), body, time.monotonic(), None, is_last=True))
            self._word_bytes += len(body) + HEAD
        self._wake()

    def put(self, load: Load) -> None:
        """Puts in a message; the caller has waited for room."""
        with self._changed:
            if self._ended:
                return
            self._begin()
            # Pieces of several lanes may alternate: each lane is put together for itself.
            ahead = sum(each.urgent for each in self._loads) if load.urgent else len(self._loads)
            self._loads.insert(ahead, load)
            self._waiting[load.lane] = self.waiting_on(load.lane) + len(load.content)
        self._wake()

    def drop(self, lane: int) -> None:
        """Takes out the messages of a lane of which nothing has left; what was begun is finished."""
        with self._changed:
            for load in [x for x in self._loads if x.lane == lane and x.begun is None]:
                self._loads.remove(load)
                self._waiting[lane] -= len(load.content)
            self._changed.notify_all()

    def end(self, bye: bytes | None) -> None:
        """Drops everything, for good; a last piece says why, if there is anybody to hear it."""
        with self._changed:
            self._ended, self._next = True, None
            self._waiting.clear()
            self._words.clear()
            self._loads.clear()
            self._passed.clear()
            if bye is not None:
                self._passed.append(Leaving(whole(Kind.BYE, bye), bye, time.monotonic(), None, is_last=True))
                self.moved_at = time.monotonic()
            self._changed.notify_all()
        self._wake()

    def waiting_on(self, lane: int) -> int:
        """Tells how many bytes of a lane wait to leave."""
        return self._waiting.get(lane, 0)

    @property
    def is_empty(self) -> bool:
        """Whether everything has left."""
        if self._ended:
            return not self._passed
        return not (self._words or self._loads or self._next or self._passed or self._passing)

    # -- the I/O thread ------------------------------------------------------------------------------------------------

    def peek(self) -> Leaving | None:
        """Gives what may leave now, without taking it out."""
        if self._passed:
            return self._passed[0]
        if self._throttle is not None or self._ended:
            return None
        if self._words:
            return self._words[0]
        if self._next is None:
            self._next = self._cut()
        return self._next

    def took(self, piece: Leaving) -> None:
        """Takes out what ``peek`` gave, once the socket has it."""
        with self._changed:
            if self._passed and self._passed[0] is piece:
                self._passed.popleft()
            elif self._words and self._words[0] is piece:
                self._take_word()
            elif self._next is piece:
                self._next = None
            self.moved_at = time.monotonic()
            if piece.load is not None and not self._ended:
                lane = piece.load.lane
                was_full = self.waiting_on(lane) > MOST_WAITING
                self._waiting[lane] -= len(piece.body)
                if was_full and self.waiting_on(lane) <= MOST_WAITING:
                    self._changed.notify_all()
        if piece.load is not None:
            piece.load.left(piece.size, piece.is_last)

    def feed(self, now: float) -> float | None:
        """Hands the throttle what it has room for; tells when it will have room again, if something waits for that."""
        throttle = self._throttle
        if throttle is None or self._ended:
            return None
        while (self._words or self._loads) and len(self._passed) < 8:
            if now < self._feed_at - _LEAD:
                return self._feed_at - _LEAD
            with self._changed:
                piece = self._take_word() if self._words else self._cut()
                if piece is None:
                    return None
                self._passing += 1
            arrival = throttle.deliver(piece.size, lambda piece=piece: self._let_through(piece))  # type: ignore[misc]
            self._feed_at = arrival - self._delay
        return None

    def _let_through(self, piece: Leaving) -> None:
        with self._changed:
            self._passing -= 1
            if not self._ended:
                self._passed.append(piece)
        self._wake()

    def _take_word(self) -> Leaving:
        word = self._words.popleft()
        self._word_bytes -= len(word.body) + HEAD
        return word

    def _cut(self) -> Leaving | None:
        with self._changed:
            if not self._loads:
                return None
            load = self._loads[0]
            if load.begun is None:
                load.begun = load.number()
            start, end = next(load.pieces)
            total = len(load.content)
            if is_last := end == total:
                self._loads.popleft()
            head = Head(Kind.DATA, load.lane, load.begun, total, start).pack()
            return Leaving(head, load.content[start:end], load.since, load, is_last)

    def _begin(self) -> None:
        # Whoever had nothing to send was not kept waiting by the other end.
        if self.is_empty:
            self.moved_at = time.monotonic()


def _nothing() -> None:
    """Is what a throttle delivers to tell its delay."""
