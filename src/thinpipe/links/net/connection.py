"""A connection as both its users and the I/O thread know it: what waits, what came, and the one reason why it ended."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from thinpipe.errors import PacketError, PeerLost, StallError
from thinpipe.links.local import Closed
from thinpipe.links.meter import Meter
from thinpipe.links.net.lanes import NetReceiveLane
from thinpipe.links.net.outbox import Leaving, Outbox
from thinpipe.links.net.pieces import HEAD, WORD, Kind, read_head
from thinpipe.links.net.pings import Pings
from thinpipe.links.throttle import Throttle

_log = logging.getLogger("thinpipe")
_MOST_UNHEARD = 4 * 1024 * 1024
_CLOSE = 2.0


class Connection:
    """One end of one connection.

    Args:
        peer: the other end, for people.
        key: its public key, if it has proved to have the secret one.
        silence: seconds without a sign of life after which it is given up.
        throttle: makes this end send as over a thinner link; None for full speed.
        wake: has the I/O thread look at the connection.
        introduced: whether the other end may send data from the start; if not, it has to say a word first.
    """

    def __init__(
        self,
        peer: str,
        *,
        key: str | None,
        silence: float,
        throttle: Throttle | None,
        wake: Callable[[], None],
        introduced: bool,
    ) -> None:
        self.peer, self.key, self.silence = peer, key, silence
        self.introduced = introduced
        self.failure: Exception | None = None
        self.sent, self.received = Meter(), Meter()
        self.changed = threading.Condition(threading.RLock())
        self.outbox = Outbox(self.changed, wake, throttle)
        self.pings = Pings(silence)
        self.gone = threading.Event()
        self.pieces = 0
        self._wake = wake
        self._words: deque[bytes] = deque()
        self._unheard = 0
        self._receivers: dict[int, NetReceiveLane] = {}
        self._calls: list[Callable[[Exception], None]] = []
        self._heard_at = time.monotonic()
        self._close_by: float | None = None
        self._pong: bytes | None = None

    # -- any thread ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises the reason why the connection is of no use any more, if there is one."""
        if self.failure is not None:
            # Raised in every thread that asks, each time without the frames (and tensors) of the time before.
            raise self.failure.with_traceback(None)
        if self._close_by is not None:
            raise Closed

    def tell(self, word: str, value: Any) -> None:
        """Queues a word."""
        try:
            body = json.dumps([word, value], allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise TypeError(f"the word {word!r} has a value that JSON does not know: {error}") from error
        if len(body) > WORD:
            raise ValueError(f"the word {word!r} has {len(body)} bytes, more than {WORD}; send it on a lane")
        with self.changed:
            self.check()
            try:
                self.outbox.put_word(Kind.WORD, body)
            except StallError as error:
                self.end(StallError(f"{self.peer} does not read what it is sent: {error}"), bye=str(error))
        self.check()

    def hear(self, timeout: float | None) -> tuple[str, Any]:
        """Takes the next word."""
        with self.changed:
            self.changed.wait_for(lambda: self._words or self.failure, timeout)
            if self._words:
                raw = self._words.popleft()
                self._unheard -= len(raw) + HEAD
                return _read_word(raw)
            self.check()
        raise StallError(f"{self.peer} sent no word within {timeout:g} s; it is busy or stopped")

    def open(self, lane: int, make: Callable[[], NetReceiveLane]) -> NetReceiveLane:
        """Opens a lane for what comes."""
        with self.changed:
            self.check()
            if lane in self._receivers:
                raise ValueError(f"lane {lane} from {self.peer} was opened before; use another number")
            receiver = self._receivers[lane] = make()
        return receiver

    def when_broken(self, call: Callable[[Exception], None]) -> None:
        """Has somebody told of the failure."""
        with self.changed:
            if self.failure is None:
                self._calls.append(call)
                return
        self._tell_all([call])

    def end(self, failure: Exception, *, bye: str | None) -> None:
        """Ends the connection, the first time that it is called.

        Args:
            failure: why, for this end.
            bye: why, for the other end; None if that is not there to hear it.
        """
        with self.changed:
            if self.failure is not None:
                return
            self.failure = failure
            calls, self._calls = self._calls, []
            self.outbox.end(None if bye is None else _cut_text(bye))
            receivers = list(self._receivers.values())
            self.changed.notify_all()
        for receiver in receivers:
            if isinstance(failure, Closed):
                receiver.abort()
            else:
                receiver.end(failure)
        if not isinstance(failure, Closed):
            self._tell_all(calls)
        self._wake()

    def close(self) -> None:
        """Has the I/O thread end the connection when everything has left."""
        with self.changed:
            if self._close_by is None:
                self._close_by = time.monotonic() + _CLOSE
        self._wake()

    # -- the I/O thread ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins to count the silence: only now there is somebody to be heard."""
        self._heard_at = time.monotonic()

    def arrived(self, raw: bytes, body: memoryview) -> bool:
        """Takes a piece; tells whether it was the word by which the other end introduces itself.

        Raises:
            PacketError: it is none, or not one that may come now.
        """
        self.pieces += 1
        if self.failure is not None:
            return False
        head = read_head(raw, len(body))
        self._heard_at = time.monotonic()
        self.received.count_received(len(raw) + len(body), messages=int(head.offset + len(body) == head.total))
        if head.kind is Kind.DATA:
            self._data(head.lane).add(head, body)
        elif head.kind is Kind.WORD:
            return self._word(bytes(body))
        elif head.kind is Kind.PING:
            # One answer at a time: whoever asks faster than it listens gets the last one only.
            self._pong = self.pings.answer(bytes(body))
        elif head.kind is Kind.PONG:
            self.pings.note(bytes(body))
        else:
            self._bye(bytes(body))
        return False

    def next_piece(self, now: float) -> Leaving | None:
        """Gives what may leave now."""
        if self._pong is not None and self.failure is None:
            self.outbox.put_word(Kind.PONG, self._pong)
            self._pong = None
        self.outbox.feed(now)
        return self.outbox.peek()

    def left(self, piece: Leaving) -> None:
        """Notes that a piece was taken by the socket."""
        self.sent.count_sent(piece.size, since=piece.since, messages=int(piece.is_last))
        self.outbox.took(piece)

    def settle(self, now: float) -> None:
        """Ends a connection that is to be closed, once everything has left."""
        if self._close_by is not None and (self.outbox.is_empty or now > self._close_by):
            self.end(Closed(f"this end has closed the connection to {self.peer}"), bye="")

    def tick(self, now: float) -> None:
        """Does what is due by the clock."""
        if self.failure is not None:
            return
        if now - self._heard_at > self.silence:
            self.end(
                StallError(f"{self.peer} gave no sign of life for {self.silence:g} s; it is stopped or unreachable"),
                bye=f"it gave no sign of life for {self.silence:g} s",
            )
        elif not self.outbox.is_empty and now - self.outbox.moved_at > self.silence:
            self.end(
                StallError(f"{self.peer} took nothing of what was sent for {self.silence:g} s; it does not read"),
                bye=f"it took nothing for {self.silence:g} s",
            )
        elif (question := self.pings.ask(now)) is not None:
            self.outbox.put_word(Kind.PING, question)

    def _data(self, lane: int) -> NetReceiveLane:
        if not self.introduced:
            raise PacketError("data came before the first word")
        receiver = self._receivers.get(lane)
        if receiver is None:
            raise PacketError(f"data came on lane {lane}, which was not opened here")
        return receiver

    def _word(self, raw: bytes) -> bool:
        _read_word(raw)
        with self.changed:
            # Kept as text: what a word of 64 KiB becomes when it is read can be thirty times as large.
            self._unheard += len(raw) + HEAD
            if self._unheard > _MOST_UNHEARD:
                raise PacketError(f"{len(self._words)} words came faster than they were read")
            self._words.append(raw)
            self.changed.notify_all()
            is_first, self.introduced = not self.introduced, True
        return is_first

    def _bye(self, body: bytes) -> None:
        reason = "".join(x if x.isprintable() else " " for x in body.decode(errors="replace"))
        says = f"ended the connection: {reason}" if reason else "closed the connection"
        self.end(PeerLost(f"{self.peer} {says}"), bye=None)

    def _tell_all(self, calls: list[Callable[[Exception], None]]) -> None:
        failure = self.failure
        if calls and failure is not None:
            # Not the I/O thread, which serves others, nor the caller, who may hold locks.
            threading.Thread(target=_call, args=(calls, failure), name="thinpipe net failure", daemon=True).start()


def _call(calls: list[Callable[[Exception], None]], failure: Exception) -> None:
    for call in calls:
        try:
            call(failure)
        except Exception:
            _log.exception("what was to be called after a connection broke has failed")


def _cut_text(text: str) -> bytes:
    return text.encode()[:1000]


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _read_word(raw: bytes) -> tuple[str, Any]:
    try:
        pair = json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise PacketError(f"a word that is not JSON: {type(error).__name__}") from error
    if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
        raise PacketError("a word is a JSON list of a name and a value")
    return pair[0], pair[1]
