"""The client's end: one socket, one connection, one channel."""

from __future__ import annotations

import threading
import time
from typing import Any

from thinpipe.errors import AuthError, PacketError, PeerLost, StallError
from thinpipe.links.net.addresses import Address
from thinpipe.links.net.channel import Channel
from thinpipe.links.net.connection import Connection
from thinpipe.links.net.diagnosis import Diagnosis, diagnose
from thinpipe.links.net.keys import ClientKeys
from thinpipe.links.net.loop import Loop, prepare
from thinpipe.links.net.need import zmq
from thinpipe.links.net.outbox import Leaving
from thinpipe.links.throttle import Throttle

_NEVER = 24 * 3600 * 1000
_LINGER = 1.0
_DIAGNOSIS = 3.0


def dial(
    address: str,
    *,
    keys: ClientKeys | None = None,
    timeout: float = 10.0,
    silence: float = 15.0,
    throttle: Throttle | None = None,
) -> Channel:
    """Connects to a server; returns when both ends have accepted each other.

    Args:
        address: the server's, as ``host:port``.
        keys: the client's keys and the server's public one; None for a server without keys, on this machine.
        timeout: seconds that this may take (default: 10).
        silence: seconds without a sign of life after which the server is given up, later (default: 15).
        throttle: makes this end send as over a thinner link (default: full speed).

    Raises:
        PeerLost: no server listens there, the name cannot be resolved, or another program answers or hangs up.
        AuthError: the keys do not fit.
        StallError: it took longer than the timeout.
        AddressError: the address is none.
    """
    where = Address.parse(address)
    # Here, since ZeroMQ does not tell that it cannot; it would also know no hosts that have IPv6 alone.
    number = where.resolved()
    context = zmq.Context(io_threads=1)
    try:
        owned = _socket(context, number, keys)
        loop = _Dialer(context, owned, where, number, keys=keys, silence=silence, throttle=throttle)
        loop.start()
    except BaseException:
        context.destroy(linger=0)
        raise
    return loop.connected(timeout)


def _socket(context: Any, where: Address, keys: ClientKeys | None) -> Any:
    made = prepare(context.socket(zmq.DEALER))
    # Never again: one socket is one connection. Told not to reconnect at all (-1), ZeroMQ would drop what had come but
    # was not read yet, such as the reason why the other end hung up.
    made.setsockopt(zmq.RECONNECT_IVL, _NEVER)
    made.setsockopt(zmq.IPV6, int(where.is_v6))
    if keys is not None:
        made.setsockopt(zmq.CURVE_SERVERKEY, keys.server.encode())
        made.setsockopt(zmq.CURVE_PUBLICKEY, keys.own.public.encode())
        made.setsockopt(zmq.CURVE_SECRETKEY, keys.own.secret.encode())
    return made


class _Dialer(Loop):
    """The thread of a client's socket."""

    def __init__(
        self,
        context: Any,
        owned: Any,
        where: Address,
        number: Address,
        *,
        keys: ClientKeys | None,
        silence: float,
        throttle: Throttle | None,
    ) -> None:
        super().__init__(context, owned, name=f"thinpipe client of {where}", linger=_LINGER)
        self._where, self._number, self._keys = where, number, keys
        self._peer = f"the server at {where}"
        self._connection = Connection(
            self._peer, key=None, silence=silence, throttle=throttle, wake=self.wake, introduced=True
        )
        self._up = threading.Event()
        self._is_up = self._is_accepted = False
        self._lost: Exception | None = None
        owned.connect(number.url)

    def connected(self, timeout: float) -> Channel:
        """Waits for the connection."""
        until = time.monotonic() + timeout
        if not self._up.wait(timeout / 5):
            found = diagnose(self._where, self._number, within=until - time.monotonic())
            if found.is_final or not self._up.wait(max(0.0, until - time.monotonic())):
                self._connection.end(found.error or self._late(found, timeout), bye=None)
        if self._connection.failure is not None:
            self._connection.gone.wait(_LINGER + 1)
            raise self._connection.failure
        return Channel(self._connection, self.thread)

    def _late(self, found: Diagnosis, timeout: float) -> StallError:
        if found.mechanism:
            return StallError(f"{self._peer} did not answer within {timeout:g} s, though it listens; is it overloaded?")
        if self._is_accepted:
            return StallError(
                f"{self._where} accepted the connection and said nothing within {timeout:g} s; a firewall or another "
                "program is there, or the server is stopped or overloaded"
            )
        return StallError(
            f"no answer at all from {self._where} within {timeout:g} s; the machine is off, or a firewall drops what "
            "is sent to it"
        )

    def _connections(self) -> tuple[Connection, ...]:
        return (self._connection,) if self._is_up else ()

    def _send(self, connection: Connection, piece: Leaving) -> None:
        self._socket.send_multipart([piece.head, piece.body], zmq.NOBLOCK)

    def _receive(self) -> None:
        frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        try:
            if len(frames) != 2:
                raise PacketError(f"a piece has two frames, got {len(frames)}")
            self._connection.arrived(frames[0].bytes, frames[1].buffer)
        except PacketError as error:
            self._connection.end(error, bye=f"PacketError: {error}")

    def _event(self, event: int, value: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._connection.begin()
            self._is_up = True
            self._up.set()
        elif event == zmq.EVENT_CONNECTED:
            self._is_accepted = True
        elif event in _ENDS:
            self._lost = self._lost or self._failure(event)

    def _failure(self, event: int) -> Exception:
        if self._is_up:
            return PeerLost(f"the connection to {self._peer} broke")
        keys = self._keys
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH and keys is not None:
            mine = keys.own.public[:8]
            return AuthError(f"{self._peer} does not accept the client's key {mine}...; have it added to its clients")
        found = diagnose(self._where, self._number, within=_DIAGNOSIS)
        if found.error is not None:
            return found.error
        if keys is None and found.mechanism == "CURVE":
            return AuthError(f"the client has no keys and {self._peer} has keys; give the client its keys")
        if keys is not None and found.mechanism == "NULL":
            return AuthError(f"the client has keys and {self._peer} has none; start it with keys")
        if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and keys is not None and found.mechanism:
            expected = keys.server[:8]
            return AuthError(
                f"{self._peer} hung up on the handshake; it has not got the key {expected}... that is expected of it"
            )
        if event == zmq.EVENT_CLOSED:
            return PeerLost(f"{self._where} could not be reached a moment ago; try again")
        return PeerLost(
            f"{self._peer} hung up before the connection was up; it was just being closed, or it is another program "
            "that speaks ZeroMQ"
        )

    def _unreachable(self, connection: Connection) -> None:
        self._lost = self._lost or self._failure(zmq.EVENT_DISCONNECTED)

    def _drained(self) -> None:
        # What had come before the connection broke may say why it did, so it is read first.
        if self._lost is not None:
            self._connection.end(self._lost, bye=None)
        self._finish()

    def _tick(self, now: float) -> None:
        self._finish()

    def _finish(self) -> None:
        """Ends the thread when there is nothing left to do: the connection has ended, and said so if it could."""
        if self._connection.failure is None:
            return
        is_late = time.monotonic() - self._connection.outbox.moved_at > _LINGER
        if self._connection.outbox.is_empty or self._lost is not None or is_late or not self._is_up:
            self._done = True

    def _clean_up(self, error: BaseException | None) -> None:
        if not self._is_up or self._lost is not None:
            self._linger = 0.0  # no one is left to take what lingers
        super()._clean_up(error)
        self._connection.end(PeerLost(f"the connection to {self._peer} broke: {error}"), bye=None)
        self._connection.gone.set()
        self._up.set()


# A failed handshake is told before the end of its connection, so the first of these says most.
_ENDS = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_DISCONNECTED,
    zmq.EVENT_CLOSED,
)
