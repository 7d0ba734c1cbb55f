"""The kernels for the CPU, compiled by numba; same functions and same bytes as ``reference``.

Each works through a range of the tensor in tiles: codes are computed into a tile, and packed from there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinpipe.kernels.cpu_tiles import TILE, codes_of, compiled, pack_tile, unpack_tile
from thinpipe.kernels.planes import packed_size
from thinpipe.kernels.threads import spread


@compiled
def _pack(codes: Any, bits: int, out: Any, start: int, stop: int) -> None:
    tile = np.empty(TILE + 8, np.uint16)
    for at in range(start, stop, TILE):
        given = codes[at : min(at + TILE, stop)]
        for k in range(given.size):
            tile[k] = np.uint16(given[k])
        pack_tile(tile, given.size, bits, out, codes.size, at)


@compiled
def _unpack(packed: Any, count: int, bits: int, out: Any, start: int, stop: int) -> None:
    tile = np.empty(TILE + 8, np.uint16)
    for at in range(start, stop, TILE):
        target = out[at : min(at + TILE, stop)]
        unpack_tile(packed, target.size, bits, tile, count, at)
        for k in range(target.size):
            target[k] = tile[k]


@compiled
def _affine(x: Any, low: Any, scale: Any, bits: int, seed: int, out: Any, start: int, stop: int) -> None:
    tile = np.empty(TILE + 8, np.uint16)
    for at in range(start, stop, TILE):
        given = x[at : min(at + TILE, stop)]
        codes_of(given, low * np.float32(0.5), scale, bits, seed, at, tile)
        pack_tile(tile, given.size, bits, out, x.size, at)


@compiled
def _lookup(packed: Any, table: Any, bits: int, out: Any, start: int, stop: int) -> None:
    tile = np.empty(TILE + 8, np.uint16)
    for at in range(start, stop, TILE):
        target = out[at : min(at + TILE, stop)]
        unpack_tile(packed, target.size, bits, tile, out.size, at)
        for k in range(target.size):
            target[k] = table[tile[k]]


@compiled
def _buckets(x: Any, lows: Any, scales: Any, value_bits: int, bits: int, out: Any, start: int, stop: int) -> None:
    tile = np.empty(TILE + 8, np.uint16)
    base = np.empty(TILE, np.float32)
    scale = np.empty(TILE, np.float32)
    number = np.empty(TILE, np.uint16)
    half = np.float32(0.5)
    zero = np.float32(0)
    top = np.float32((1 << value_bits) - 1)
    for at in range(start, stop, TILE):
        given = x[at : min(at + TILE, stop)]
        base[:] = lows[0]
        scale[:] = scales[0]
        number[:] = 0
        for bucket in range(1, lows.size):
            border = lows[bucket]
            this_scale = scales[bucket]
            this_number = np.uint16(bucket << value_bits)
            for k in range(given.size):
                above = given[k] >= border
                base[k] = border if above else base[k]
                scale[k] = this_scale if above else scale[k]
                number[k] = this_number if above else number[k]
        for k in range(given.size):
            grid = np.rint((given[k] * half - base[k] * half) * scale[k])
            tile[k] = np.uint16(np.int32(min(max(grid, zero), top))) | number[k]
        pack_tile(tile, given.size, bits, out, x.size, at)


@compiled
def _four_buckets(x: Any, lows: Any, scales: Any, value_bits: int, bits: int, out: Any, start: int, stop: int) -> None:
    """Does the same for up to four buckets, all in registers; buckets that there are not begin at infinity."""
    tile = np.empty(TILE + 8, np.uint16)
    half = np.float32(0.5)
    zero = np.float32(0)
    top = np.float32((1 << value_bits) - 1)
    low0, low1, low2, low3 = lows[0], lows[1], lows[2], lows[3]
    scale0, scale1, scale2, scale3 = scales[0], scales[1], scales[2], scales[3]
    for at in range(start, stop, TILE):
        given = x[at : min(at + TILE, stop)]
        for k in range(given.size):
            value = given[k]
            low = low1 if value >= low1 else low0
            scale = scale1 if value >= low1 else scale0
            number = np.int32(1) if value >= low1 else np.int32(0)
            low = low2 if value >= low2 else low
            scale = scale2 if value >= low2 else scale
            number = np.int32(2) if value >= low2 else number
            low = low3 if value >= low3 else low
            scale = scale3 if value >= low3 else scale
            number = np.int32(3) if value >= low3 else number
            grid = np.rint((value * half - low * half) * scale)
            tile[k] = np.uint16(np.int32(min(max(grid, zero), top)) | (number << np.int32(value_bits)))
        pack_tile(tile, given.size, bits, out, x.size, at)


@compiled
def _nearest(x: Any, borders: Any, bits: int, out: Any, start: int, stop: int) -> None:
    tile = np.empty(TILE + 8, np.uint16)
    for at in range(start, stop, TILE):
        given = x[at : min(at + TILE, stop)]
        tile[:] = 0
        for border in borders:
            for k in range(given.size):
                tile[k] += np.uint16(not (given[k] < border))
        pack_tile(tile, given.size, bits, out, x.size, at)


# -- from tensors to arrays ----------------------------------------------------------------------------------------


def pack(codes: Tensor, bits: int) -> Tensor:
    """See ``planes.pack``."""
    out = torch.empty(packed_size(codes.numel(), bits), dtype=torch.uint8)
    given, target = codes.to(torch.int32).numpy(), out.numpy()
    spread(codes.numel(), TILE, lambda a, b: _pack(given, bits, target, a, b))
    return out


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """See ``planes.unpack``."""
    out = torch.empty(count, dtype=torch.int32)
    given, target = packed.numpy(), out.numpy()
    spread(count, TILE, lambda a, b: _unpack(given, count, bits, target, a, b))
    return out


def affine(x: Tensor, low: Tensor, scale: Tensor, bits: int, seed: int | None) -> Tensor:
    """See ``reference.affine``."""
    if bool(low.isnan()):
        return torch.zeros(packed_size(x.numel(), bits), dtype=torch.uint8)
    out = torch.empty(packed_size(x.numel(), bits), dtype=torch.uint8)
    given, target = x.numpy(), out.numpy()
    start, slope, dice = np.float32(low.item()), np.float32(scale.item()), -1 if seed is None else seed
    spread(x.numel(), TILE, lambda a, b: _affine(given, start, slope, bits, dice, target, a, b))
    return out


def lookup(packed: Tensor, table: Tensor, count: int, bits: int) -> Tensor:
    """See ``reference.lookup``."""
    out = torch.empty(count)
    given, values, target = packed.numpy(), table.contiguous().numpy(), out.numpy()
    spread(count, TILE, lambda a, b: _lookup(given, values, bits, target, a, b))
    return out


def buckets(x: Tensor, lows: Tensor, scales: Tensor, value_bits: int, split_bits: int) -> Tensor:
    """See ``reference.buckets``."""
    bits = value_bits + split_bits
    if bool(lows[0].isnan()):
        return torch.zeros(packed_size(x.numel(), bits), dtype=torch.uint8)
    out = torch.empty(packed_size(x.numel(), bits), dtype=torch.uint8)
    given, target, starts, slopes = x.numpy(), out.numpy(), lows.numpy(), scales.numpy()
    if split_bits <= 2:
        missing = 4 - 2**split_bits
        starts = np.append(starts, [np.float32(np.inf)] * missing).astype(np.float32)
        slopes = np.append(slopes, [np.float32(0)] * missing).astype(np.float32)
        spread(x.numel(), TILE, lambda a, b: _four_buckets(given, starts, slopes, value_bits, bits, target, a, b))
        return out
    spread(x.numel(), TILE, lambda a, b: _buckets(given, starts, slopes, value_bits, bits, target, a, b))
    return out


def nearest(x: Tensor, borders: Tensor, bits: int) -> Tensor:
    """See ``reference.nearest``."""
    out = torch.empty(packed_size(x.numel(), bits), dtype=torch.uint8)
    given, edges, target = x.numpy(), borders.numpy(), out.numpy()
    spread(x.numel(), TILE, lambda a, b: _nearest(given, edges, bits, target, a, b))
    return out
