"""Hoarding: a ZeroMQ message of endlessly many frames.

ZeroMQ hands out a message when its last frame has come, and until then keeps the frames, however many. Its limits do
not see them: one is for the size of a frame, the other for the number of whole messages. The kernel does: it knows how
many bytes a connection has brought. Whoever brings megabytes without a single piece among them is up to no good.
"""

from __future__ import annotations

import contextlib
import socket
import struct

from thinpipe.links.net.arrivals import Arrival

# Well above what waits, unread, for an honest client's turn in ZeroMQ's pipe and in the kernel.
_MOST = 32 * 1024 * 1024
_RECEIVED, _INFO = struct.Struct("=Q"), 136  # tcpi_bytes_received is at 128 in Linux's struct tcp_info


class Hoarding:
    """Compares what connections brought with what came of it."""

    def __init__(self) -> None:
        self._last: dict[Arrival, tuple[int, int]] = {}

    def suspects(self, arrival: Arrival, pieces: int) -> bool:
        """Tells whether a connection brought too much since its last piece.

        Args:
            arrival: the connection.
            pieces: how many pieces came of it so far.
        """
        brought = _brought(arrival.fd)
        last_pieces, then = self._last.get(arrival, (0, 0))
        if pieces != last_pieces:
            self._last[arrival] = (pieces, brought)
            return False
        return brought - then > _MOST

    def forget(self, arrival: Arrival) -> None:
        """Forgets a connection that has ended."""
        self._last.pop(arrival, None)


def _brought(fd: int) -> int:
    """Asks the kernel how many bytes came; 0 where it does not tell."""
    if not hasattr(socket, "TCP_INFO"):
        return 0
    with contextlib.suppress(OSError):
        borrowed = socket.socket(fileno=fd)
        try:
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO)
        finally:
            borrowed.detach()
        if len(info) == _INFO:
            return int(_RECEIVED.unpack_from(info, _INFO - _RECEIVED.size)[0])
    return 0
