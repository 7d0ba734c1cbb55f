"""One tensor as it crosses a wire; docs/wire-format.md draws it.

::

    "TPKT" version dtype dims 0 | codec's length, sections, checksum | lengths | shape | order | codec | sections
      4       1      1     1  1        2              2        4        8 each  8 each  1 each
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from thinpipe.errors import CodecError, PacketError

MAGIC = b"TPKT"
VERSION = 1
MOST_DIMS = 32
MOST_SECTIONS = 255
MOST_SPEC = 1024

DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.complex64,
    torch.complex128,
)
"""A dtype's number on the wire is its place here: append, never insert."""

_FIXED = struct.Struct("<4sBBBxHHI")
_CHECKSUM_AT = _FIXED.size - 4


def header_size(spec: str, dims: int, sections: int) -> int:
    """Counts the bytes before the first section."""
    return _FIXED.size + 8 * sections + 9 * dims + len(spec)


@dataclass(frozen=True, eq=False, repr=False)
class Packet:
    """One encoded tensor.

    Args:
        spec: the codec that wrote it and can read it.
        dtype: of the tensor.
        shape: of the tensor.
        order: its dimensions from the slowest in memory to the fastest; ``channels_last`` is 0, 2, 3, 1.
        sections: the bytes, as flat ``uint8`` tensors on the device where the tensor was.
    """

    spec: str
    dtype: torch.dtype
    shape: torch.Size
    order: tuple[int, ...]
    sections: tuple[Tensor, ...]

    def __repr__(self) -> str:
        return f"Packet({self.spec!r}, {self.dtype}, {tuple(self.shape)}, {self.nbytes} bytes on {self.device})"

    @property
    def nbytes(self) -> int:
        """The length of ``bytes(packet)``: header, metadata and codes."""
        header = header_size(self.spec, len(self.shape), len(self.sections))
        return header + sum(section.numel() for section in self.sections)

    @property
    def device(self) -> torch.device:
        """Where the sections are, and where the tensor will be."""
        return self.sections[0].device

    def to(self, device: torch.device | str) -> Packet:
        """Moves the sections to a device."""
        return Packet(self.spec, self.dtype, self.shape, self.order, tuple(x.to(device) for x in self.sections))

    def header(self) -> bytes:
        """Writes the header, the checksum left 0."""
        spec = self.spec.encode("ascii")
        dims = len(self.shape)
        if dims > MOST_DIMS or len(spec) > MOST_SPEC or len(self.sections) > MOST_SECTIONS:
            raise CodecError(
                f"a packet holds at most {MOST_DIMS} dimensions, {MOST_SECTIONS} sections and a codec of {MOST_SPEC} "
                f"characters, got {dims}, {len(self.sections)} and {len(spec)}"
            )
        number = DTYPES.index(self.dtype)
        fixed = _FIXED.pack(MAGIC, VERSION, number, dims, len(spec), len(self.sections), 0)
        lengths = [section.numel() for section in self.sections]
        numbers = struct.pack(f"<{len(lengths) + dims}Q", *lengths, *self.shape)
        return fixed + numbers + bytes(self.order) + spec

    def __bytes__(self) -> bytes:
        message = bytearray(self.nbytes)
        header = self.header()
        message[: len(header)] = header
        at = len(header)
        for section in self.sections:
            message[at : at + section.numel()] = section.contiguous().cpu().numpy().data
            at += section.numel()
        struct.pack_into("<I", message, _CHECKSUM_AT, zlib.crc32(message))
        return bytes(message)

    @classmethod
    def from_bytes(cls, buffer: bytes | bytearray | memoryview) -> Packet:
        """Reads a packet from a whole message, of which it keeps a copy.

        Raises:
            PacketError: the message is not a packet, or was damaged on its way.
        """
        message = bytearray(buffer)
        if len(message) < _FIXED.size:
            raise PacketError(f"a packet has at least {_FIXED.size} bytes, got {len(message)}")
        magic, version, number, dims, spec_length, count, checksum = _FIXED.unpack_from(message)
        if magic != MAGIC:
            raise PacketError(f"not a packet: it begins with {bytes(magic)!r} instead of {MAGIC!r}")
        if version != VERSION:
            raise PacketError(f"a packet of version {version}, but this thinpipe reads version {VERSION}; update it")
        if number >= len(DTYPES) or dims > MOST_DIMS or spec_length > MOST_SPEC or not 0 < count <= MOST_SECTIONS:
            raise PacketError(f"a damaged header: type {number}, {dims} dimensions, {count} sections")
        start = _FIXED.size + 8 * count + 9 * dims + spec_length
        if len(message) < start:
            raise PacketError(f"the packet ends in its header: {len(message)} bytes of {start}")
        numbers = struct.unpack_from(f"<{count + dims}Q", message, _FIXED.size)
        lengths, shape = numbers[:count], numbers[count:]
        if len(message) != start + sum(lengths):
            raise PacketError(f"a packet of {start + sum(lengths)} bytes has {len(message)}")
        struct.pack_into("<I", message, _CHECKSUM_AT, 0)
        if zlib.crc32(message) != checksum:
            raise PacketError("the packet was damaged on its way: its checksum is wrong")
        order = tuple(message[start - spec_length - dims : start - spec_length])
        spec = message[start - spec_length : start]
        if sorted(order) != list(range(dims)) or not spec.isascii() or prod(max(1, size) for size in shape) >= 2**60:
            raise PacketError(f"a packet of an impossible tensor: shape {shape}, order {order}, codec {bytes(spec)!r}")
        return cls(spec.decode("ascii"), DTYPES[number], torch.Size(shape), order, _cut(message, start, lengths))


def _cut(message: bytearray, start: int, lengths: Sequence[int]) -> tuple[Tensor, ...]:
    whole = torch.frombuffer(message, dtype=torch.uint8)
    sections = []
    for length in lengths:
        sections.append(whole[start : start + length])
        start += length
    return tuple(sections)
