"""How a message lies on the wire of a lane, and how both ends know its size before it comes.

Gloo moves bytes only into a receive that was posted, of a size that was chosen when it was posted. To pay no round trip
for a message, its receive is posted ``window`` messages ahead, and both ends forecast its size from what both know by
then: the true lengths of the messages up to ``k - window``. For the first ``window`` messages that is nothing, and the
forecast is 64 KiB. With a window of 2::

    message            0       1       2       3       4
    true length       L0      L1      L2      L3      L4
    head on the wire  64K     64K    P(L0)  P(L0,L1) P(L0,L1,L2)      the receive for message 2 is posted as soon as
                                       ^                              message 0 was taken, and message 0 said L0
                                       `-- L0

A message is a head of exactly the forecast size and, if its content does not fit, a tail with exactly the rest. Heads
and tails have tags of their own, because the receives of later heads are already posted when a tail is asked for::

    tag 2 * lane        | header, 32 bytes | content ............. |       a longer content is cut here
                        | header, 32 bytes | content | 0 0 0 0 0 0 |       a shorter one is padded
                        `---------- forecast size P --------------'
    tag 2 * lane + 1                         | the rest of the content |   asked for once the header has come, so a
                                                                           tail costs the lane one round trip

The forecast is the largest of the last 16 lengths that would have padded those 16 by no more than an eighth of their
bytes, and 256 bytes each. It follows that equal lengths are never padded and never have tails; lengths that waver by a
few percent are padded to the largest; a shorter last micro-batch is padded to its fellows; and where two lengths that
are far apart alternate, the short ones are sent as they are and the long ones have tails. After a lasting drop the
``window`` messages under way, and one more, are padded.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque

import numpy as np
from torch import Tensor

from thinpipe.errors import PacketError

FIRST_SIZE = 64 * 1024
HEADER_SIZE = 32
_RECENT, _PADDING_SHARE, _PADDING_EACH = 16, 8, 256
_MAGIC, _VERSION = b"TPLN", 1
# magic, version, window, lane, sequence number, length of the content, size of the head; the crc of these follows.
_FIELDS, _CRC = struct.Struct("<4sBBHIQQ"), struct.Struct("<I")
_SEQUENCES = 2**32


def write_header(message: Tensor, *, lane: int, window: int, sequence: int, length: int, head: int) -> None:
    """Writes the header of a message into its first 32 bytes.

    The window and the size of the head are known to both ends; they are sent because ends that disagree about them
    would put bytes in the wrong place without noticing.
    """
    fields = _FIELDS.pack(_MAGIC, _VERSION, window, lane, sequence % _SEQUENCES, length, head)
    message.numpy()[:HEADER_SIZE] = np.frombuffer(fields + _CRC.pack(zlib.crc32(fields)), dtype=np.uint8)


def read_length(head: Tensor, *, lane: int, window: int, sequence: int, most: int) -> int:
    """Reads the length of a message from its head, which may be anything.

    Args:
        head: the bytes that came.
        lane: the lane they came on.
        window: this end's window.
        sequence: the number of the message that is due.
        most: the largest length to be accepted; nothing is allocated for a larger one.

    Raises:
        PacketError: the head is not that of the expected message.
    """
    raw = head.numpy()[:HEADER_SIZE].tobytes()
    magic, version, its_window, its_lane, its_sequence, length, size = _FIELDS.unpack_from(raw)
    expected = (
        ("magic", magic, _MAGIC),
        ("checksum", _CRC.unpack_from(raw, _FIELDS.size)[0], zlib.crc32(raw[: _FIELDS.size])),
        ("version", version, _VERSION),
        ("lane", its_lane, lane),
        ("window", its_window, window),
        ("sequence number", its_sequence, sequence % _SEQUENCES),
        ("head size", size, head.numel()),
    )
    for name, got, due in expected:
        if got != due:
            raise PacketError(f"message {sequence} on lane {lane} has {name} {got!r}, expected {due!r}")
    if length > most:
        raise PacketError(
            f"message {sequence} on lane {lane} announces {length} bytes, more than the {most} that are accepted"
        )
    return int(length)


class Forecast:
    """The sizes of the heads of one lane, the same at both ends.

    Each end calls ``note`` with the true length of every message, in order, and ``size`` for the head of every message,
    in order and up to ``window`` messages ahead of the last note.
    """

    def __init__(self, window: int) -> None:
        self._sizes = deque([FIRST_SIZE] * window)
        self._recent: deque[int] = deque(maxlen=_RECENT)

    def size(self) -> int:
        """Takes the size of the next head."""
        return self._sizes.popleft()

    def note(self, length: int) -> None:
        """Learns the true length of the next message."""
        self._recent.append(length)
        self._sizes.append(HEADER_SIZE + self._choose())

    def _choose(self) -> int:
        lengths = sorted(self._recent)
        bearable = sum(lengths) // _PADDING_SHARE + _PADDING_EACH * len(lengths)
        best = shorter = 0
        for rank, length in enumerate(lengths):
            if rank * length - shorter > bearable:
                break
            best, shorter = length, shorter + length
        return best
