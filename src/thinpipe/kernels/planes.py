"""Packs codes of 1 to 16 bits, without a bit of waste between them.

A code is cut into planes of 8, 4, 2 or 1 bits, its lowest bits first, and each plane is packed on its own, the first
code of a byte in the byte's lowest bits::

    12 bits = 8 + 4:   a0 a1 a2 a3 ...   the low 8 bits of every code, a byte each
                       b1b0 b3b2 ...     the high 4 bits of every code, two in a byte

    6 bits = 4 + 2,   7 bits = 4 + 2 + 1,   16 bits = 8 + 8

Whole bytes everywhere, so every kernel packs and unpacks with shifts alone, and a lossless coder finds the high bits,
which compress, apart from the low ones, which do not.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_BITS = 16


def plane_widths(bits: int) -> list[int]:
    """Lists the widths of the planes that codes of so many bits are cut into."""
    widths = [8] * (bits // 8)
    return widths + [width for width in (4, 2, 1) if bits & width]


def plane_size(count: int, width: int) -> int:
    """Counts the bytes of one plane."""
    return -(-count * width // 8)


def packed_size(count: int, bits: int) -> int:
    """Counts the bytes of so many packed codes."""
    return sum(plane_size(count, width) for width in plane_widths(bits))


def pack(codes: Tensor, bits: int) -> Tensor:
    """Packs integer codes.

    Args:
        codes: a flat tensor of any integer type, each from 0 to ``2**bits - 1``.
        bits: the width, 1 to 16.

    Returns:
        ``packed_size(codes.numel(), bits)`` bytes.
    """
    planes, shift = [], 0
    for width in plane_widths(bits):
        planes.append(_plane((codes >> shift) & (2**width - 1), width))
        shift += width
    return torch.cat(planes)


def _plane(values: Tensor, width: int) -> Tensor:
    values = values.to(torch.uint8)
    each = 8 // width
    if each == 1:
        return values
    padded = values.new_zeros(plane_size(values.numel(), width) * each)
    padded[: values.numel()] = values
    lanes = padded.view(-1, each)
    packed = lanes[:, 0].clone()
    for lane in range(1, each):
        packed |= lanes[:, lane] << (lane * width)
    return packed


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """Unpacks codes as 32-bit integers; the inverse of ``pack``."""
    codes = torch.zeros(count, dtype=torch.int32, device=packed.device)
    start = shift = 0
    for width in plane_widths(bits):
        size = plane_size(count, width)
        plane = packed[start : start + size]
        each = 8 // width
        lanes = torch.stack([(plane >> (lane * width)) & (2**width - 1) for lane in range(each)], dim=1)
        codes |= lanes.reshape(-1)[:count].to(torch.int32) << shift
        start += size
        shift += width
    return codes
