"""The thread that owns a socket. Nobody else touches it: ZeroMQ's sockets are not for two threads.

::

    users' threads ── outboxes ── wake ──┐
                                         ▼
    events ─► one pass: notice who came and went, receive, send a piece for everybody in turn ─► sleep until a wake-up,
                                                                                                 a message, room, a tick

ZeroMQ tells of what happens to a socket by a file descriptor, which becomes readable when something has changed and is
quiet again as soon as anybody has looked. The thread therefore looks at everything, and once more at what came while it
did, before it sleeps. That a peer can take more is told in the same way, but may be overlooked; somebody who waits for
that is tried again after a few milliseconds.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

from thinpipe.errors import PeerLost
from thinpipe.links.net.connection import Connection
from thinpipe.links.net.need import zmq
from thinpipe.links.net.outbox import Leaving
from thinpipe.links.net.pieces import PIECE

_log = logging.getLogger("thinpipe")
_TURN = 64  # pieces that are received, or sent, before something else is looked at
_TICK = 0.1
_RETRY, _RETRY_LATER, _RETRIES = 0.001, 0.005, 100
PIPE = 8  # pieces that ZeroMQ may hold for a peer; more would be counted long before they have left
MOST_FRAME = PIECE + 64
HANDSHAKE = 10.0


def prepare(made: Any) -> Any:
    """Sets what the sockets of both ends have in common."""
    made.setsockopt(zmq.SNDHWM, PIPE)
    made.setsockopt(zmq.RCVHWM, PIPE)
    made.setsockopt(zmq.MAXMSGSIZE, MOST_FRAME)
    made.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE * 1000))
    made.setsockopt(zmq.LINGER, 0)
    return made


class Wake:
    """Wakes a thread that sleeps in a selector."""

    def __init__(self) -> None:
        self.reader, self._writer = socket.socketpair()
        self.reader.settimeout(0)
        self._writer.settimeout(0)
        self._called = False

    def __call__(self) -> None:
        """Wakes it, now or as soon as it wants to sleep."""
        if not self._called:
            self._called = True
            with contextlib.suppress(OSError):
                self._writer.send(b"!")

    def clear(self) -> None:
        """Forgets about calls; what they were about has to be looked at after this."""
        if self._called:
            with contextlib.suppress(BlockingIOError):
                self.reader.recv(4096)
            self._called = False

    def close(self) -> None:
        """Closes it; it may still be called."""
        self.reader.close()
        self._writer.close()


class Loop:
    """The thread of one socket; the two ends differ in whom they talk to.

    Args:
        context: the socket's own context, which ends with the thread.
        owned: the socket, which nobody has to touch after ``start``.
        name: of the thread.
        linger: seconds that what has been sent may take to leave at the end.
    """

    def __init__(self, context: Any, owned: Any, *, name: str, linger: float) -> None:
        self._context, self._socket, self._linger = context, owned, linger
        self.wake = Wake()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._monitor = _monitor(context, owned)
        self._selector = selectors.DefaultSelector()
        for watched in (self.wake.reader, owned.getsockopt(zmq.FD), self._monitor.getsockopt(zmq.FD)):
            self._selector.register(watched, selectors.EVENT_READ)
        self._others: list[Any] = []
        self._next_tick = 0.0
        self._blocked = 0
        self._done = False

    def start(self) -> None:
        """Starts the thread."""
        self.thread.start()

    # -- what the two ends do differently ------------------------------------------------------------------------------

    def _connections(self) -> Iterable[Connection]:
        """Gives all who may have something to send."""
        raise NotImplementedError

    def _send(self, connection: Connection, piece: Leaving) -> None:
        """Sends a piece, or raises what ZeroMQ does."""
        raise NotImplementedError

    def _receive(self) -> None:
        """Receives one message, which is there."""
        raise NotImplementedError

    def _unreachable(self, connection: Connection) -> None:
        """Is told that there is nobody to send to."""
        raise NotImplementedError

    def _event(self, event: int, value: int) -> None:
        """Is told what happened to the socket."""
        raise NotImplementedError

    def _tick(self, now: float) -> None:
        """Is called now and then."""
        raise NotImplementedError

    def _drained(self) -> None:
        """Is told that everything that had come was received."""
        raise NotImplementedError

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while not self._done:
                self._pass()
        except BaseException as caught:
            error = caught
            _log.exception("%s has failed", self.thread.name)
        finally:
            self._clean_up(error)

    def _pass(self) -> None:
        self.wake.clear()
        self._watch()
        received = self._receive_some()
        now = time.monotonic()
        sent, blocked = self._send_some(now)
        if now >= self._next_tick:
            self._next_tick = now + _TICK
            self._tick(now)
            for connection in list(self._connections()):
                connection.tick(now)
        if not received and not sent and not self._done and not self._has(self._socket):
            self._sleep(now, blocked=blocked)

    def _sleep(self, now: float, *, blocked: bool) -> None:
        self._blocked = self._blocked + 1 if blocked else 0
        until = self._next_tick
        if blocked:
            until = min(until, now + (_RETRY if self._blocked < _RETRIES else _RETRY_LATER))
        for connection in self._connections():
            if (at := connection.outbox.feed(now)) is not None:
                until = min(until, at)
        self._selector.select(max(0.0, until - time.monotonic()))

    def _watch(self) -> None:
        """Looks at what has happened to the socket."""
        while self._has(self._monitor):
            event, value = _read_event(self._monitor)
            self._event(event, value)

    def _receive_some(self) -> bool:
        for turn in range(_TURN):
            if not self._has(self._socket):
                self._drained()
                return turn > 0
            self._receive()
        return True

    def _send_some(self, now: float) -> tuple[bool, bool]:
        """Sends a piece for everybody, and again, until nobody can or it is somebody else's turn."""
        sent = blocked = False
        turns, able = 0, list(self._connections())
        while able and turns < _TURN:
            still = []
            for connection in able:
                connection.settle(now)
                outcome = self._send_one(connection, now)
                if outcome:
                    still.append(connection)
                blocked = blocked or outcome is None
                turns += 1
            sent = sent or bool(still)
            able = still
        return sent, blocked

    def _send_one(self, connection: Connection, now: float) -> bool | None:
        """Sends a piece; None if there is no room for it, False if there is nothing to send."""
        try:
            piece = connection.next_piece(now)
            if piece is None:
                return False
            self._send(connection, piece)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._unreachable(connection)
            return False
        except Exception as error:
            connection.end(error, bye=type(error).__name__)
            return True
        connection.left(piece)
        return True

    def _has(self, owned: Any) -> bool:
        return bool(owned.getsockopt(zmq.EVENTS) & zmq.POLLIN)

    def _clean_up(self, error: BaseException | None) -> None:
        connections = list(self._connections())
        for connection in connections:
            connection.end(PeerLost(f"the connection to {connection.peer} broke: {error or 'it was ended'}"), bye=None)
        with contextlib.suppress(Exception):
            self._selector.close()
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        for other in (self._monitor, *self._others):
            other.close(linger=0)
        self._socket.close(linger=int(self._linger * 1000))
        self._context.term()  # waits for what lingers, and no longer
        self.wake.close()
        for connection in connections:
            connection.gone.set()


def _monitor(context: Any, owned: Any) -> Any:
    """Has all that happens to a socket told on another one."""
    address = f"inproc://monitor.{id(owned)}"
    owned.monitor(address, zmq.EVENT_ALL)
    monitor = context.socket(zmq.PAIR)
    # With a limit, ZeroMQ's own thread would wait for this one to read about the events, and everybody with it.
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.setsockopt(zmq.LINGER, 0)
    monitor.connect(address)
    return monitor


def _read_event(monitor: Any) -> tuple[int, int]:
    first, _ = monitor.recv_multipart(zmq.NOBLOCK)
    return int.from_bytes(first[:2], "little"), int.from_bytes(first[2:6], "little")
