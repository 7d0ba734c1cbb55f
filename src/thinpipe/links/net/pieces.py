"""How a message lies on the wire between a client and a server: in pieces that are too small to do harm.

A piece is one ZeroMQ message of two frames, a head of 28 bytes and up to 256 KiB::

    0       4       5      6      8        12               20               28
    | TPNT  | version | kind | lane | number | total length   | offset         |     | bytes ... |
      4s      u8        u8     u16    u32      u64              u64                    total length in all
                               `- of the message in its lane -'  `- of these bytes in the message

A message is cut in one way only: every piece but the last has 256 KiB. So there is nothing to gain from a million tiny
ones, and ZeroMQ itself can refuse whatever claims to be larger, before there is memory for it::

    message of 600 KiB     | 256 KiB    | 256 KiB    | 88 KiB |
    offset                 0            262144       524288          no gaps, nothing twice, in order

Only data has lanes. Everything else is one piece: a word (JSON, for the user), a ping and its pong (how both ends know
that the other one lives, and what its clock shows) and a bye (the last piece of all, with the reason as text).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinpipe.errors import PacketError

PIECE = 256 * 1024
WORD = 64 * 1024
LANES = 2**16
HEAD = 28
_FIELDS = struct.Struct("<4sBBHIQQ")
_MAGIC, _VERSION = b"TPNT", 1
_NUMBERS = 2**32


class Kind(enum.IntEnum):
    """What a piece is a piece of."""

    WORD = 1
    DATA = 2
    PING = 3
    PONG = 4
    BYE = 5


# The most bytes of each kind that is never cut.
_WHOLE = {Kind.WORD: WORD, Kind.PING: 8, Kind.PONG: 16, Kind.BYE: 1024}


class Head(NamedTuple):
    """The head of a piece."""

    kind: Kind
    lane: int
    number: int
    total: int
    offset: int

    def pack(self) -> bytes:
        """Writes the head as it is sent."""
        return _FIELDS.pack(_MAGIC, _VERSION, self.kind, self.lane, self.number % _NUMBERS, self.total, self.offset)


def whole(kind: Kind, body: bytes) -> bytes:
    """Makes the head of something that is one piece."""
    return Head(kind, 0, 0, len(body), 0).pack()


def cuts(total: int) -> Iterator[tuple[int, int]]:
    """Tells where the pieces of a message of ``total`` bytes begin and end; an empty message has one, empty piece."""
    for start in range(0, max(total, 1), PIECE):
        yield start, min(start + PIECE, total)


def read_head(raw: bytes, size: int) -> Head:
    """Reads the head of a piece, which may be anything.

    Args:
        raw: the head as it came.
        size: how many bytes came with it.

    Raises:
        PacketError: this is not a piece.
    """
    if len(raw) != HEAD:
        raise PacketError(f"a piece has a head of {HEAD} bytes, got {len(raw)}")
    magic, version, kind, lane, number, total, offset = _FIELDS.unpack(raw)
    if magic != _MAGIC:
        raise PacketError(f"a piece begins with {_MAGIC!r}, got {magic!r}")
    if version != _VERSION:
        raise PacketError(f"this end speaks version {_VERSION}, the other one {version}; install the same thinpipe")
    if kind not in Kind.__members__.values():
        raise PacketError(f"a piece of the unknown kind {kind}")
    head = Head(Kind(kind), lane, number, total, offset)
    most = _WHOLE.get(head.kind)
    if most is not None and ((lane, number, offset) != (0, 0, 0) or total != size or size > most):
        raise PacketError(f"a {head.kind.name.lower()} is one piece of at most {most} bytes, got {size} and {head}")
    if most is None and (offset % PIECE or size != min(PIECE, max(0, total - offset)) or (offset >= total > 0)):
        raise PacketError(f"message {number} on lane {lane} of {total} bytes has no piece of {size} at {offset}")
    return head


class Assembly:
    """Puts the messages of one lane together again.

    Args:
        lane: the lane.
        most: the longest message to be accepted; nothing is allocated for a longer one.
    """

    def __init__(self, lane: int, most: int) -> None:
        self._lane, self._most = lane, most
        self._number = 0
        self._offset = 0
        self._message: Tensor | None = None

    def add(self, head: Head, body: memoryview) -> Tensor | None:
        """Adds the next piece; gives the message if that was its last.

        Raises:
            PacketError: it is not the piece that is due.
        """
        due = self._message.numel() if self._message is not None else head.total
        if (head.number, head.offset, head.total) != (self._number % _NUMBERS, self._offset, due):
            raise PacketError(
                f"lane {self._lane} is at byte {self._offset} of message {self._number}, got a piece of message "
                f"{head.number} (of {head.total} bytes) at {head.offset}"
            )
        if self._message is None:
            if head.total > self._most:
                raise PacketError(
                    f"message {self._number} on lane {self._lane} announces {head.total} bytes, more than the "
                    f"{self._most} that are accepted"
                )
            self._message = torch.empty(head.total, dtype=torch.uint8)
        end = self._offset + len(body)
        self._message.numpy()[self._offset : end] = np.frombuffer(body, dtype=np.uint8)
        self._offset = end
        if end < head.total:
            return None
        message, self._message = self._message, None
        self._number, self._offset = self._number + 1, 0
        return message
