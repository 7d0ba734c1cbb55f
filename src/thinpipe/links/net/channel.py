"""A channel: one end of one connection between a client and a server.

A connection that broke stays broken. It is told once, to everybody who waits or asks, by one and the same error; who
wants to go on dials again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor

from thinpipe.links.meter import Meter
from thinpipe.links.net.connection import Connection
from thinpipe.links.net.lanes import NetReceiveLane, NetSendLane
from thinpipe.links.net.pieces import LANES
from thinpipe.links.throttle import Throttle

_GONE = 5.0


class Channel:
    """One end of one connection; any thread may call anything.

    Attributes:
        peer: the other end, for people: ``the server at 10.0.0.7:5555``, ``client 'alice'``.
        key: the public key that the other end has proved to own; None at a client, and without keys.
        sent: counts everything that has left, words and heads included.
        received: counts everything that came.
    """

    def __init__(self, connection: Connection, io: threading.Thread) -> None:
        self._connection, self._io = connection, io
        self._senders: set[int] = set()
        self.peer, self.key = connection.peer, connection.key
        self.sent, self.received = connection.sent, connection.received

    def __repr__(self) -> str:
        return f"<Channel to {self.peer}: {self.failure or 'open'}>"

    @property
    def failure(self) -> Exception | None:
        """Why the channel is of no use any more; None while it is."""
        return self._connection.failure

    def tell(self, word: str, value: Any = None) -> None:
        """Says a word to the other end, before all data that waits to leave, and returns at once.

        Args:
            word: what it is about.
            value: anything that JSON knows, at most 64 KiB together with the word (default: None).

        Raises:
            PeerLost, StallError, PacketError: the failure, if the channel is broken.
            Closed: this end has closed it.
        """
        self._connection.tell(word, value)

    def hear(self, timeout: float | None = None) -> tuple[str, Any]:
        """Takes the next word and its value; those that came before the channel broke are still given out.

        Args:
            timeout: seconds to wait for it (default: until the channel breaks).

        Raises:
            StallError: no word came within the timeout; or the failure.
            PeerLost, PacketError: the failure, if the channel is broken.
            Closed: this end has closed it.
        """
        return self._connection.hear(timeout)

    def sender(self, lane: int, meter: Meter, *, urgent: bool = False) -> NetSendLane:
        """Opens a lane for what is to be sent; the other end must have opened it before anything is.

        Args:
            lane: 0 to 65535, once for each channel.
            meter: counts what is sent on the lane.
            urgent: whether its messages go before those of lanes that are not (default: no).
        """
        _check_lane(lane)
        with self._connection.changed:
            if lane in self._senders:
                raise ValueError(f"lane {lane} to {self.peer} was opened before; use another number")
            self._senders.add(lane)
        return NetSendLane(self._connection, lane, meter, urgent=urgent)

    def receiver(
        self,
        lane: int,
        *,
        most: int,
        window: int,
        meter: Meter,
        take: Callable[[Tensor], None],
        failed: Callable[[Exception], None],
    ) -> NetReceiveLane:
        """Opens a lane for what comes.

        Args:
            lane: 0 to 65535, once for each channel.
            most: the longest message to be accepted, in bytes. A longer one breaks the channel.
            window: how many messages may wait to be taken. One more breaks the channel: the two ends have to agree,
                by what they are at, how far the sender may be ahead.
            meter: counts what is received on the lane.
            take: called with each message, a flat uint8 CPU tensor, in order, from the lane's own thread.
            failed: called from there, once, after the last message, with the reason why no more will come; not if
                this end has aborted the lane or closed the channel. What ``take`` raises ends the lane as well.
        """
        _check_lane(lane)
        return self._connection.open(
            lane,
            lambda: NetReceiveLane(lane, most=most, window=window, meter=meter, take=take, failed=failed),
        )

    def slow_down(self, throttle: Throttle) -> None:
        """Sends as over a thinner link from now on."""
        self._connection.outbox.slow_down(throttle)

    def when_broken(self, call: Callable[[Exception], None]) -> None:
        """Has ``call`` called with the failure, once, from a thread made for that; at once if there is one already.

        A channel that this end closes is not broken.
        """
        self._connection.when_broken(call)

    def clock_samples(self) -> list[tuple[float, float, float]]:
        """Gives the last 32 comparisons of clocks, all ``time.perf_counter``: asked (here), there, answered (here)."""
        return list(self._connection.pings.samples)

    def break_off(self, error: Exception) -> None:
        """Ends the channel with this failure, at once; the other end is told the reason.

        Args:
            error: what everybody at this end gets; its text goes to the other end.
        """
        self._connection.end(error, bye=f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Ends the channel when what was told and sent has left, or after 2 seconds; safe to call again."""
        self._connection.close()
        if threading.current_thread() is not self._io:
            self._connection.gone.wait(_GONE)


def _check_lane(lane: int) -> None:
    if not 0 <= lane < LANES:
        raise ValueError(f"a lane has a number from 0 to {LANES - 1}, got {lane}")
