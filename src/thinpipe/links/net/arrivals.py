"""The TCP connections of a server's socket, which ZeroMQ hides: who is there, and how to show somebody the door.

ZeroMQ tells by events that a connection was accepted and that it ended, each with its file descriptor, and every
message knows the descriptor it came by. It offers no way to end the connection of one peer, but the descriptor does.
What has to be avoided is to meet another connection that got the same number meanwhile::

    ZeroMQ's thread     ... event: 19 ended ── close(19) ── accept() = 19 ── event: 19 accepted
    this one                      dup(19) ── read all events: still the same 19? ── shutdown, by the duplicate

If the duplicate was made before the close, it is of the old connection; if after, the event is there to be read.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Arrival:
    """One TCP connection.

    Args:
        fd: its file descriptor.
        serial: tells it from others that had the same one before.
        at: when it was accepted.
    """

    fd: int
    serial: int
    at: float


class Arrivals:
    """Keeps account of the connections that are there.

    Args:
        watch: reads all events there are, and has them noted here.
    """

    def __init__(self, watch: Callable[[], None]) -> None:
        self._watch = watch
        self._serials = itertools.count()
        self._here: dict[int, Arrival] = {}
        # Those of whom nothing is known yet, the oldest first.
        self._strangers: dict[int, Arrival] = {}

    def __len__(self) -> int:
        return len(self._here)

    def came(self, fd: int) -> Arrival:
        """Notes that a connection was accepted."""
        arrival = Arrival(fd, next(self._serials), time.monotonic())
        self._here[fd] = arrival
        self._strangers.pop(fd, None)
        self._strangers[fd] = arrival
        return arrival

    def went(self, fd: int) -> Arrival | None:
        """Notes that a connection ended."""
        self._strangers.pop(fd, None)
        return self._here.pop(fd, None)

    def of(self, fd: int) -> Arrival | None:
        """Gives the connection of a message that came; None if it has ended since."""
        self._watch()
        return self._here.get(fd)

    def known(self, arrival: Arrival) -> None:
        """Notes that a connection is no stranger any more."""
        if self._strangers.get(arrival.fd) == arrival:
            del self._strangers[arrival.fd]

    def here(self) -> list[Arrival]:
        """Gives all connections."""
        return list(self._here.values())

    def oldest_stranger(self) -> Arrival | None:
        """Gives the one that has been here longest without saying anything."""
        return next(iter(self._strangers.values()), None)

    def end(self, arrival: Arrival) -> None:
        """Ends a connection, if it is there."""
        with contextlib.suppress(OSError), _duplicate(arrival.fd) as duplicate:
            if self.of(arrival.fd) == arrival:
                duplicate.shutdown(socket.SHUT_RDWR)

    def address(self, arrival: Arrival) -> str:
        """Tells where a connection comes from."""
        with contextlib.suppress(OSError), _duplicate(arrival.fd) as duplicate:
            host, port = duplicate.getpeername()[:2]
            if self.of(arrival.fd) == arrival:
                return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return "an address that is gone"


def _duplicate(fd: int) -> socket.socket:
    return socket.fromfd(fd, socket.AF_INET, socket.SOCK_STREAM)
