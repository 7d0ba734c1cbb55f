"""One tensor as it crosses a wire; docs/wire-format.md draws it.

::

    "TPKT" version dtype dims 0 | codec's length, sections, checksum | lengths | shape | order | codec | sections
      4       1      1     1  1        2              2        4        8 each  8 each  1 each
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from thinpipe.codecs.checksum import checksum
from thinpipe.errors import CodecError, PacketError

MAGIC = b"TPKT"
VERSION = 3
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
        return self.header_size + sum(section.numel() for section in self.sections)

    @property
    def header_size(self) -> int:
        """The bytes before the first section."""
        return header_size(self.spec, len(self.shape), len(self.sections))

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

    def parts(self) -> list[Tensor]:
        """Lists the message's parts, flat ``uint8`` tensors on the CPU: the header, and the sections as they are."""
        header = bytearray(self.header())
        sections = [section.contiguous().cpu() for section in self.sections]
        struct.pack_into("<I", header, _CHECKSUM_AT, checksum(header, (section.numpy() for section in sections)))
        return [torch.frombuffer(header, dtype=torch.uint8), *sections]

    def __bytes__(self) -> bytes:
        return b"".join(part.numpy().data for part in self.parts())

    @classmethod
    def from_bytes(cls, buffer: bytes | bytearray | memoryview) -> Packet:
        """Reads a packet from a whole message, of which it keeps a copy.

        Raises:
            PacketError: the message is not a packet, or was damaged on its way.
        """
        if not len(buffer):
            raise PacketError(f"a packet has at least {_FIXED.size} bytes, got none")
        return cls.from_tensor(torch.frombuffer(bytearray(buffer), dtype=torch.uint8))

    @classmethod
    def from_tensor(cls, message: Tensor) -> Packet:
        """Reads a packet from a whole message, a flat ``uint8`` tensor on the CPU, whose memory the packet then shares.

        Raises:
            PacketError: the message is not a packet, or was damaged on its way.
        """
        data = message.numpy().data
        if len(data) < _FIXED.size:
            raise PacketError(f"a packet has at least {_FIXED.size} bytes, got {len(data)}")
        magic, version, number, dims, spec_length, count, told = _FIXED.unpack_from(data)
        if magic != MAGIC:
            raise PacketError(f"not a packet: it begins with {bytes(magic)!r} instead of {MAGIC!r}")
        if version != VERSION:
            raise PacketError(f"a packet of version {version}, but this thinpipe reads version {VERSION}; update it")
        if number >= len(DTYPES) or dims > MOST_DIMS or spec_length > MOST_SPEC or not 0 < count <= MOST_SECTIONS:
            raise PacketError(f"a damaged header: type {number}, {dims} dimensions, {count} sections")
        start = _FIXED.size + 8 * count + 9 * dims + spec_length
        if len(data) < start:
            raise PacketError(f"the packet ends in its header: {len(data)} bytes of {start}")
        numbers = struct.unpack_from(f"<{count + dims}Q", data, _FIXED.size)
        lengths, shape = numbers[:count], numbers[count:]
        if len(data) != start + sum(lengths):
            raise PacketError(f"a packet of {start + sum(lengths)} bytes has {len(data)}")
        header = bytearray(data[:start])
        struct.pack_into("<I", header, _CHECKSUM_AT, 0)
        sections = message[start:].split(list(lengths))
        if checksum(header, (section.numpy() for section in sections)) != told:
            raise PacketError("the packet was damaged on its way: its checksum is wrong")
        order = tuple(header[start - spec_length - dims : start - spec_length])
        spec = header[start - spec_length :]
        if sorted(order) != list(range(dims)) or not spec.isascii() or prod(max(1, size) for size in shape) >= 2**60:
            raise PacketError(f"a packet of an impossible tensor: shape {shape}, order {order}, codec {bytes(spec)!r}")
        return cls(spec.decode("ascii"), DTYPES[number], torch.Size(shape), order, tuple(sections))
