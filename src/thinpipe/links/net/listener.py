"""The server's end: one port, a channel for each client.

The clients are strangers to each other, and some may be hostile. What one of them does ends its own connection at most;
what it may occupy is bounded, before it is known by little and then by what its lanes were opened for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from thinpipe.errors import AddressError, AuthError, PacketError, PeerLost
from thinpipe.links.net.addresses import Address
from thinpipe.links.net.arrivals import Arrival, Arrivals
from thinpipe.links.net.channel import Channel
from thinpipe.links.net.connection import Connection
from thinpipe.links.net.doorkeeper import DOMAIN, Doorkeeper
from thinpipe.links.net.hoarding import Hoarding
from thinpipe.links.net.keys import ServerKeys
from thinpipe.links.net.loop import Loop, prepare
from thinpipe.links.net.need import zmq
from thinpipe.links.net.outbox import Leaving
from thinpipe.links.net.seldom import Seldom
from thinpipe.links.throttle import Throttle

_log = logging.getLogger("thinpipe")
# How long a client may take to hang up after the bye; what was sent before it may still be on its way.
_GRACE, _SHORT = 2.0, 0.3
_LINGER = 0.2


class Listener:
    """Listens at an address for clients.

    Args:
        address: ``host:port``; port 0 for one that is free.
        keys: the server's keys and the clients that may come in. None for whoever is on this machine, and then the
            address has to be of the loopback.
        accepted: called with each new channel, when its first word has come, which is still to be heard. It is called
            from the thread that serves all clients, and must not block.
        silence: seconds without a sign of life after which a client is given up (default: 15).
        throttle: makes a throttle for each channel, to send as over a thinner link (default: full speed).
        most_connections: how many may be there at a time (default: 256). With one more, the oldest of which nothing
            was heard yet has to go, or else the newcomer.

    Raises:
        AddressError: the address is none, is taken, or is open to others than this machine and there are no keys.
    """

    def __init__(
        self,
        address: str,
        *,
        keys: ServerKeys | None,
        accepted: Callable[[Channel], None],
        silence: float = 15.0,
        throttle: Callable[[], Throttle] | None = None,
        most_connections: int = 256,
    ) -> None:
        where = Address.parse(address)
        if keys is None and not where.is_loopback:
            raise AddressError(
                f"without keys a server listens to its own machine only, not at {where}; make keys for it and its "
                f"clients (thinpipe keygen NAME), or use 127.0.0.1:{where.port}"
            )
        context = zmq.Context(io_threads=1)
        try:
            self._loop = _Doorway(
                context,
                where,
                keys,
                accepted=accepted,
                silence=silence,
                throttle=throttle,
                most_connections=most_connections,
            )
        except BaseException:
            context.destroy(linger=0)
            raise
        self.address = str(Address(where.host, self._loop.port))
        self._loop.start()
        if keys is None:
            _log.info(
                "listening at %s without keys: open to every user of this machine only",
                self.address,
            )
        else:
            _log.info("listening at %s for %d clients", self.address, len(keys.clients))

    def allow(self, clients: Mapping[str, str]) -> None:
        """Replaces the keys that may come in; whoever is here with another one has to go.

        Args:
            clients: public keys, each with the client's name.
        """
        self._loop.allow(clients)

    def close(self) -> None:
        """Says bye to all clients and stops listening; safe to call again."""
        self._loop.close()


@dataclass(eq=False)
class _Guest:
    """A connection of which at least one piece came."""

    id: bytes
    arrival: Arrival | None
    connection: Connection
    show_out_at: float | None = None


class _Doorway(Loop):
    """The thread of a server's socket."""

    def __init__(
        self,
        context: Any,
        where: Address,
        keys: ServerKeys | None,
        *,
        accepted: Callable[[Channel], None],
        silence: float,
        throttle: Callable[[], Throttle] | None,
        most_connections: int,
    ) -> None:
        # Apart, so that a flood of strangers does not hide what a client has done.
        self._log, self._log_of_guests = Seldom(), Seldom()
        self._doorkeeper = None if keys is None else Doorkeeper(context, keys.clients, self._log)
        owned = prepare(context.socket(zmq.ROUTER))
        owned.setsockopt(zmq.ROUTER_MANDATORY, 1)
        owned.setsockopt(zmq.IPV6, int(where.is_v6))
        if keys is not None:
            owned.setsockopt(zmq.CURVE_SERVER, 1)
            owned.setsockopt(zmq.CURVE_SECRETKEY, keys.own.secret.encode())
            owned.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        super().__init__(context, owned, name=f"thinpipe server at {where}", linger=_LINGER)
        if self._doorkeeper is not None:
            self._others.append(self._doorkeeper.socket)
            self._selector.register(self._doorkeeper.socket.getsockopt(zmq.FD), 1)
        self._accepted, self._silence, self._throttle = accepted, silence, throttle
        self._most = most_connections
        self._arrivals = Arrivals(self._watch)
        self._guests: dict[bytes, _Guest] = {}
        self._of: dict[Connection, _Guest] = {}
        self._by_arrival: dict[Arrival, _Guest] = {}
        # Connections that are to be ended, but not in the midst of reading about them.
        self._leaving: list[Arrival] = []
        self._hoarding = Hoarding()
        # Guests that have gone, and until when what they had sent is read.
        self._lost: dict[bytes, float] = {}
        self._close_by: float | None = None
        self._skipping = False
        try:
            owned.bind(where.url)
        except zmq.ZMQError as error:
            self._clean_up(None)
            raise AddressError(f"cannot listen at {where}: {error.strerror}; use another address or port") from error
        self.port = int(owned.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").rpartition(b":")[2])

    # -- any thread ----------------------------------------------------------------------------------------------------

    def allow(self, clients: Mapping[str, str]) -> None:
        """Replaces the keys that may come in."""
        if self._doorkeeper is None:
            raise AuthError("a server without keys cannot tell its clients apart; start it with keys")
        self._doorkeeper.clients = dict(clients)
        for guest in list(self._guests.values()):
            if guest.connection.key not in clients:
                error = AuthError(f"{guest.connection.peer} may not come in any more; its key was withdrawn")
                guest.connection.end(error, bye="its key was withdrawn")

    def close(self) -> None:
        """Ends everything."""
        if self._close_by is None:
            self._close_by = time.monotonic() + _GRACE
        self._next_tick = 0.0
        self.wake()
        if threading.current_thread() is not self.thread:
            self.thread.join(2 * _GRACE + 1)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _connections(self) -> list[Connection]:
        return [guest.connection for guest in list(self._guests.values())]

    def _send(self, connection: Connection, piece: Leaving) -> None:
        guest = self._of[connection]
        self._socket.send_multipart([guest.id, piece.head, piece.body], zmq.NOBLOCK)

    def _unreachable(self, connection: Connection) -> None:
        self._lose(self._of[connection])

    def _watch(self) -> None:
        super()._watch()
        while self._doorkeeper is not None and self._has(self._doorkeeper.socket):
            self._doorkeeper.answer()

    def _event(self, event: int, value: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._welcome(self._arrivals.came(value))
        elif event == zmq.EVENT_DISCONNECTED:
            arrival = self._arrivals.went(value)
            if arrival is not None:
                self._hoarding.forget(arrival)
            if arrival is not None and (guest := self._by_arrival.pop(arrival, None)) is not None:
                self._lose(guest)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            keyed = "without keys, with the key of another server" if self._doorkeeper is not None else "with keys"
            self._log.warn(f"a connection was refused: a client {keyed}, or no thinpipe client")
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            # Whoever notices first that the keys do not fit hangs up; so does who only looks whether a port is open.
            _log.info("a connection was closed during the handshake: a client with other keys, or no thinpipe client")

    def _welcome(self, arrival: Arrival) -> None:
        if self._close_by is not None:
            self._show_out(arrival)
        elif len(self._arrivals) > self._most:
            self._show_out(self._arrivals.oldest_stranger() or arrival)

    # -- what comes ----------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        if self._skipping:
            self._skip()
            return
        id_ = self._socket.recv(zmq.NOBLOCK)
        frames: list[Any] = []
        while self._socket.getsockopt(zmq.RCVMORE) and len(frames) < 3:
            frames.append(self._socket.recv(zmq.NOBLOCK, copy=False))
        self._skip()
        try:
            guest = self._guests.get(id_) or self._meet(id_, frames)
        except Exception:
            _log.exception("a client could not be welcomed")
            return
        if guest is None:
            return
        try:
            if len(frames) != 2:
                raise PacketError(f"a piece has two frames, got {len(frames) if len(frames) < 3 else 'more'}")
            if guest.connection.arrived(frames[0].bytes, frames[1].buffer):
                self._accepted(Channel(guest.connection, self.thread))
        except Exception as error:
            self._refuse(guest, error)

    def _skip(self) -> None:
        """Throws away what is left of a message of too many frames, some at a time: others wait meanwhile."""
        for _ in range(64):
            self._skipping = bool(self._socket.getsockopt(zmq.RCVMORE))
            if not self._skipping:
                return
            self._socket.recv(zmq.NOBLOCK, copy=False)

    def _refuse(self, guest: _Guest, error: Exception) -> None:
        connection = guest.connection
        if connection.failure is None:
            self._log_of_guests.warn(f"{connection.peer} was dropped: {error}")
            # What went wrong in this process is nobody else's business.
            text = f": {error}" if isinstance(error, PacketError) else ""
            connection.end(error, bye=f"{type(error).__name__}{text}")

    def _meet(self, id_: bytes, frames: list[Any]) -> _Guest | None:
        """Makes the acquaintance of a connection; None if it has nothing to say."""
        if (fd := _property(frames, zmq.SRCFD)) is None:
            # A peer of ZeroMQ 3 or older, which shook no hands. It stays a stranger, and has to go as one.
            return None
        arrival, key = self._arrivals.of(int(fd)), _property(frames, "User-Id") or None
        if self._doorkeeper is not None and key not in self._doorkeeper.clients:
            if arrival is not None:  # its key was withdrawn since
                self._show_out(arrival)
            return None
        peer = self._name(arrival, key)
        connection = Connection(
            peer,
            key=key,
            silence=self._silence,
            throttle=None if self._throttle is None else self._throttle(),
            wake=self.wake,
            introduced=False,
        )
        guest = _Guest(id_, arrival, connection)
        self._guests[id_] = self._of[connection] = guest
        if arrival is None:
            self._lose(guest)
        else:
            self._arrivals.known(arrival)
            self._by_arrival[arrival] = guest
        if len(id_) != 5 or id_[0] != 0:
            # Who comes back under a name of its own choice could be taken for who left under it.
            self._refuse(guest, PacketError("a client must not choose its own routing id"))
        return guest

    def _name(self, arrival: Arrival | None, key: str | None) -> str:
        if self._doorkeeper is not None and key is not None:
            return f"client {self._doorkeeper.clients.get(key, key[:8])!r}"
        return f"the client at {'an address that is gone' if arrival is None else self._arrivals.address(arrival)}"

    # -- who goes ------------------------------------------------------------------------------------------------------

    def _lose(self, guest: _Guest) -> None:
        # What it had sent before it went is still read, within reason.
        self._lost.setdefault(guest.id, time.monotonic() + _GRACE)

    def _drained(self) -> None:
        for id_ in list(self._lost):
            self._forget(self._guests[id_])

    def _forget(self, guest: _Guest) -> None:
        connection = guest.connection
        connection.end(PeerLost(f"the connection to {connection.peer} broke"), bye=None)
        self._lost.pop(guest.id, None)
        self._guests.pop(guest.id, None)
        self._of.pop(connection, None)
        if guest.arrival is not None:
            self._by_arrival.pop(guest.arrival, None)
        connection.gone.set()
        if self._close_by is not None:
            self._next_tick = 0.0

    def _tick(self, now: float) -> None:
        for id_, until in list(self._lost.items()):
            if now > until:
                self._forget(self._guests[id_])
        for guest in list(self._guests.values()):
            self._see_off(guest, now)
        while (stranger := self._arrivals.oldest_stranger()) is not None and now - stranger.at > self._silence + 10:
            self._show_out(stranger)
        for arrival in self._arrivals.here():
            guest_here = self._by_arrival.get(arrival)
            if self._hoarding.suspects(arrival, 0 if guest_here is None else guest_here.connection.pieces):
                self._catch(arrival, guest_here)
        leaving, self._leaving = self._leaving, []
        for arrival in leaving:
            self._arrivals.end(arrival)
        if self._close_by is not None:
            self._finish(now)

    def _see_off(self, guest: _Guest, now: float) -> None:
        """Waits for a client to hang up, once it was told bye, and hangs up if it does not."""
        if guest.connection.failure is None:
            return
        if guest.show_out_at is None:
            # Who has broken the rules may use the time to go on; who has not may be slow to read the last data.
            guest.show_out_at = now + (_SHORT if isinstance(guest.connection.failure, PacketError) else _GRACE)
        if guest.connection.outbox.is_empty:
            guest.connection.gone.set()
        if now > guest.show_out_at:
            guest.show_out_at = now + _GRACE
            guest.connection.gone.set()
            if guest.arrival is None:
                self._lose(guest)
            else:
                self._show_out(guest.arrival)

    def _show_out(self, arrival: Arrival) -> None:
        self._arrivals.known(arrival)
        self._leaving.append(arrival)

    def _catch(self, arrival: Arrival, guest: _Guest | None) -> None:
        error = PacketError("megabytes came without a single piece among them")
        if guest is not None:
            self._refuse(guest, error)
        elif arrival not in self._leaving:
            self._log.warn(f"the client at {self._arrivals.address(arrival)} was dropped: {error}")
        self._show_out(arrival)

    def _finish(self, now: float) -> None:
        assert self._close_by is not None
        for guest in list(self._guests.values()):
            # What was said before goes first, but half of the time is for the bye.
            if guest.connection.outbox.is_empty or now > self._close_by - _GRACE / 2:
                guest.connection.end(PeerLost("this server has closed"), bye="the server was closed")
        self._next_tick = min(self._next_tick, now + 0.01)
        self._done = not self._guests or now > self._close_by


def _property(frames: list[Any], name: str | int) -> str | None:
    """Gives what ZeroMQ knows of the connection that a message came by."""
    try:
        return str(frames[0].get(name))
    except (IndexError, zmq.ZMQError):
        return None
