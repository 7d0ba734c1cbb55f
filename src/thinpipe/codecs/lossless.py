"""``|zstd``: what the codec before it wrote, compressed without loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, Wrapper
from thinpipe.codecs.packet import Packet
from thinpipe.errors import PacketError
from thinpipe.extras import need

LEVEL = 1

_STORED, _COMPRESSED = 0, 1

_LEAST_BLOCK, _MOST_OF_BLOCK = 4, 1 << 17
"""Bytes of zstd's smallest block, and of the most that any block holds: no honest frame makes more of its bytes."""


class Zstd(Wrapper):
    """Compresses each section, unless that makes it longer; one byte tells which.

    Args:
        inner: what writes the sections.
    """

    def __init__(self, inner: Coder) -> None:
        super().__init__(inner)
        self.fixed = False
        self.shaped = inner.shaped

    def __str__(self) -> str:
        return f"{self.inner}|zstd"

    def pack(self, x: Tensor) -> list[Tensor]:
        return [_compressed(section) for section in self.inner.pack(x)]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        sizes = self.inner.sizes(shape, dtype)
        opened = [_decompressed(section, size) for section, size in zip(sections, sizes, strict=True)]
        return self.inner.unpack(opened, shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        return [1 + size for size in self.inner.sizes(shape, dtype)]

    def for_gradient_of(self, packet: Packet) -> Coder:
        alike = packet.spec.split("|")[0] == str(self.inner).split("|")[0]
        if not alike or not packet.dtype.is_floating_point or not packet.shape.numel():
            return self
        sizes = self.inner.reused_sizes(packet.shape)
        plain = packet.sections[: len(sizes)]
        if packet.spec.endswith("|zstd"):
            plain = tuple(map(_decompressed, plain, sizes))
        inner = self.inner.for_gradient_of(replace(packet, spec=packet.spec.removesuffix("|zstd"), sections=plain))
        return self if inner is self.inner else Zstd(inner)


def _zstandard() -> Any:
    need("codecs with |zstd", "zstandard")
    import zstandard

    return zstandard


def _compressed(section: Tensor) -> Tensor:
    raw = section.contiguous().cpu().numpy()
    small = _zstandard().ZstdCompressor(level=LEVEL).compress(raw) if raw.size else b""
    kind, body = (_COMPRESSED, small) if len(small) < raw.size else (_STORED, raw.tobytes())
    return torch.frombuffer(bytearray([kind]) + body, dtype=torch.uint8).to(section.device)


def _decompressed(section: Tensor, size: int) -> Tensor:
    """Restores a section that must be ``size`` bytes long.

    Raises:
        PacketError: it is not.
    """
    zstandard = _zstandard()
    message = section.cpu().numpy()
    body = message[1:]
    if not message.size or message[0] not in (_STORED, _COMPRESSED):
        raise PacketError("a compressed section says neither that it is compressed nor that it is not")
    if message[0] == _COMPRESSED:
        try:
            # The frame's own word for its length is checked first: it is what would be allocated.
            claimed = zstandard.get_frame_parameters(body.tobytes()).content_size
            honest = claimed == size <= body.size // _LEAST_BLOCK * _MOST_OF_BLOCK
            restored = zstandard.ZstdDecompressor().decompress(body, max_output_size=size) if honest else b""
        except zstandard.ZstdError as error:
            raise PacketError(f"a compressed section is damaged: {error}") from error
    else:
        restored = body.tobytes()
    if len(restored) != size:
        raise PacketError(f"a compressed section holds {len(restored)} bytes where {size} were expected")
    return torch.frombuffer(bytearray(restored), dtype=torch.uint8).to(section.device) if size else section[:0]
