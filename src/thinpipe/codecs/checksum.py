"""The checksum of a packet: the CRC-32 of its header and of a digest of each section.

::

    section   w0   w1   ... w511     a row of 4 KiB, as 512 words of 64 bits
              w512 w513 ... w1023
              ...
              s0   s1   ... s511     the digest: sums of columns, modulo 2^64, and then the bytes that fill no row

A CRC of all bytes takes longer than a codec takes to make them, and ten times as long as these sums. Any damage that
stays within 4 KiB changes a sum; so does a section cut short or shifted. What TCP rules out, rows that changed places,
would not be seen.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

ROW = 4096
_WORD = np.dtype("<u8")


def checksum(header: bytes | bytearray, sections: Iterable[NDArray[np.uint8]]) -> int:
    """Computes the checksum of a header, in which it is still 0, and of flat sections."""
    crc = zlib.crc32(header)
    for section in sections:
        whole = section.size - section.size % ROW
        if whole:
            rows = section[:whole].view(_WORD).reshape(-1, ROW // _WORD.itemsize)
            crc = zlib.crc32(np.add.reduce(rows, axis=0).data, crc)
        crc = zlib.crc32(section[whole:].data, crc)
    return crc
