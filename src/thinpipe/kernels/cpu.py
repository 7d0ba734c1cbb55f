"""The kernels for the CPU, compiled by numba; same functions and same bytes as ``reference``.

Each works through a range in tiles that stay in the first-level cache: codes are computed into a tile of 16-bit
integers and packed from there. Floats are compared as integers that order alike, because compilers vectorise integer
minima and not those of floats, and because NaN and the infinities are then simply the ends of the order.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from thinpipe.kernels import reference
from thinpipe.kernels.planes import packed_size
from thinpipe.kernels.reference import BINS
from thinpipe.kernels.threads import ranges, spread

TILE = 1024

_INFINITY = np.int32(0x7F800000)
_ZERO_BIN = BINS // 2

_compiled = numba.njit(nogil=True, cache=True, error_model="numpy")
_inlined = numba.njit(nogil=True, cache=True, error_model="numpy", inline="always")


@_inlined
def _key(bits: Any) -> Any:
    """Maps the bits of a float to an integer that orders as the float does."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@_compiled
def _pack_tile(codes: Any, size: int, bits: int, out: Any, count: int, start: int) -> None:
    """Packs a tile of codes, which begins at element ``start``, a multiple of 8, of ``count``."""
    offset = 0
    shift = 0
    for k in range(size, size + (-size % 8)):
        codes[k] = 0
    for width in (8, 8, 4, 2, 1):
        if width > bits - shift:
            continue
        each = 8 // width
        at = offset + start // each
        last = (size + each - 1) // each
        if width == 8:
            for k in range(last):
                out[at + k] = np.uint8(codes[k] >> shift)
        elif width == 4:
            for k in range(last):
                out[at + k] = np.uint8(((codes[2 * k] >> shift) & 15) | (((codes[2 * k + 1] >> shift) & 15) << 4))
        elif width == 2:
            for k in range(last):
                low = ((codes[4 * k] >> shift) & 3) | (((codes[4 * k + 1] >> shift) & 3) << 2)
                high = ((codes[4 * k + 2] >> shift) & 3) | (((codes[4 * k + 3] >> shift) & 3) << 2)
                out[at + k] = np.uint8(low | (high << 4))
        else:
            for k in range(last):
                byte = 0
                for lane in range(8):
                    byte |= ((codes[8 * k + lane] >> shift) & 1) << lane
                out[at + k] = np.uint8(byte)
        offset += (count * width + 7) // 8
        shift += width


@_compiled
def _unpack_tile(packed: Any, size: int, bits: int, codes: Any, count: int, start: int) -> None:
    """Unpacks a tile of codes; the inverse of ``_pack_tile``."""
    offset = 0
    shift = 0
    for k in range(size):
        codes[k] = 0
    for width in (8, 8, 4, 2, 1):
        if width > bits - shift:
            continue
        each = 8 // width
        at = offset + start // each
        last = (size + each - 1) // each
        if width == 8:
            for k in range(last):
                codes[k] |= np.uint16(packed[at + k]) << shift
        else:
            mask = (1 << width) - 1
            for k in range(last):
                byte = packed[at + k]
                for lane in range(each):
                    codes[each * k + lane] |= np.uint16(((byte >> (lane * width)) & mask) << shift)
        offset += (count * width + 7) // 8
        shift += width


@_compiled
def _pack(codes: Any, bits: int, out: Any, start: int, stop: int) -> None:
    tile = np.empty(TILE + 8, np.uint16)
    for at in range(start, stop, TILE):
        size = min(TILE, stop - at)
        for k in range(size):
            tile[k] = np.uint16(codes[at + k])
        _pack_tile(tile, size, bits, out, codes.size, at)


@_compiled
def _unpack(packed: Any, count: int, bits: int, out: Any, start: int, stop: int) -> None:
    tile = np.empty(TILE + 8, np.uint16)
    for at in range(start, stop, TILE):
        size = min(TILE, stop - at)
        _unpack_tile(packed, size, bits, tile, count, at)
        for k in range(size):
            out[at + k] = tile[k]


@_compiled
def _extent(bits: Any, start: int, stop: int, out: Any) -> None:
    low = np.int32(0x7FFFFFFF)
    high = np.int32(-0x80000000)
    for k in range(start, stop):
        key = _key(bits[k])
        low = min(low, key)
        high = max(high, key)
    out[0] = low
    out[1] = high


@_inlined
def _hash(index: Any, seed: Any) -> Any:
    # numba widens products of 32-bit integers to 64 bits: each is cut back.
    h = np.uint32((np.uint32(index) ^ seed) * np.uint32(0x9E3779B1))
    h = np.uint32((h ^ (h >> np.uint32(15))) * np.uint32(0x85EBCA77))
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE3D))
    return np.uint32(h ^ (h >> np.uint32(16)))


@_inlined
def _die(index: Any, seed: Any) -> Any:
    return np.float32(_hash(index, seed) >> np.uint32(16)) * np.float32(2.0**-16)


@_compiled
def _affine(x: Any, low: Any, scale: Any, bits: int, seed: int, out: Any, start: int, stop: int) -> None:
    tile = np.empty(TILE + 8, np.uint16)
    half = np.float32(0.5)
    base = low * half
    top = np.float32((1 << bits) - 1)
    zero = np.float32(0)
    for at in range(start, stop, TILE):
        size = min(TILE, stop - at)
        if seed < 0:
            for k in range(size):
                grid = np.rint((x[at + k] * half - base) * scale)
                tile[k] = np.uint16(np.int32(min(max(grid, zero), top)))
        else:
            dice = np.uint32(seed)
            for k in range(size):
                grid = np.floor((x[at + k] * half - base) * scale + _die(at + k, dice))
                tile[k] = np.uint16(np.int32(min(max(grid, zero), top)))
        _pack_tile(tile, size, bits, out, x.size, at)


@_compiled
def _lookup(packed: Any, table: Any, bits: int, out: Any, start: int, stop: int) -> None:
    if bits == 8:
        for k in range(start, stop):
            out[k] = table[packed[k]]
        return
    tile = np.empty(TILE + 8, np.uint16)
    for at in range(start, stop, TILE):
        size = min(TILE, stop - at)
        _unpack_tile(packed, size, bits, tile, out.size, at)
        for k in range(size):
            out[at + k] = table[tile[k]]


@_compiled
def _coarse(bits: Any, start: int, stop: int, counts: Any) -> None:
    """Counts the values by the upper half of their keys, in several histograms: equal neighbours need not wait."""
    whole = start + (stop - start) // 4 * 4
    for k in range(start, whole, 4):
        counts[0, (_key(bits[k]) >> np.int32(16)) + 32768] += 1
        counts[1, (_key(bits[k + 1]) >> np.int32(16)) + 32768] += 1
        counts[2, (_key(bits[k + 2]) >> np.int32(16)) + 32768] += 1
        counts[3, (_key(bits[k + 3]) >> np.int32(16)) + 32768] += 1
    for k in range(whole, stop):
        counts[0, (_key(bits[k]) >> np.int32(16)) + 32768] += 1


@_compiled
def _fine(bits: Any, start: int, stop: int, slots: Any, counts: Any) -> None:
    """Counts the values of the wanted coarse bins by the lower half of their keys."""
    for k in range(start, stop):
        key = _key(bits[k])
        slot = slots[(key >> np.int32(16)) + 32768]
        if slot:
            counts[slot - 1, key & np.int32(0xFFFF)] += 1


@_compiled
def _zeros(bits: Any, start: int, stop: int) -> int:
    count = 0
    for k in range(start, stop):
        count += bits[k] == 0
    return count


@_compiled
def _buckets(x: Any, lows: Any, scales: Any, value_bits: int, split_bits: int, out: Any, start: int, stop: int) -> None:
    tile = np.empty(TILE + 8, np.uint16)
    base = np.empty(TILE, np.float32)
    scale = np.empty(TILE, np.float32)
    number = np.empty(TILE, np.uint16)
    half = np.float32(0.5)
    zero = np.float32(0)
    top = np.float32((1 << value_bits) - 1)
    for at in range(start, stop, TILE):
        size = min(TILE, stop - at)
        for k in range(size):
            base[k] = lows[0] * half
            scale[k] = scales[0]
            number[k] = 0
        for bucket in range(1, lows.size):
            border = lows[bucket]
            this_base = border * half
            this_scale = scales[bucket]
            for k in range(size):
                above = x[at + k] >= border
                base[k] = this_base if above else base[k]
                scale[k] = this_scale if above else scale[k]
                number[k] = bucket if above else number[k]
        for k in range(size):
            grid = np.rint((x[at + k] * half - base[k]) * scale[k])
            code = np.uint16(np.int32(min(max(grid, zero), top)))
            tile[k] = code | np.uint16(number[k] << value_bits)
        _pack_tile(tile, size, value_bits + split_bits, out, x.size, at)


@_compiled
def _nearest(x: Any, borders: Any, bits: int, out: Any, start: int, stop: int) -> None:
    tile = np.empty(TILE + 8, np.uint16)
    for at in range(start, stop, TILE):
        size = min(TILE, stop - at)
        for k in range(size):
            tile[k] = 0
        for border in borders:
            for k in range(size):
                tile[k] += np.uint16(not (x[at + k] < border))
        _pack_tile(tile, size, bits, out, x.size, at)


# -- from tensors to arrays ----------------------------------------------------------------------------------------


def _bits_of(x: Tensor) -> Any:
    return x.numpy().view(np.int32)


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


def extent(x: Tensor) -> Tensor:
    """See ``reference.extent``."""
    bits = _bits_of(x)
    parts = ranges(x.numel(), TILE)
    found = np.empty((len(parts), 2), np.int32)
    size = parts[0][1]
    spread(x.numel(), TILE, lambda a, b: _extent(bits, a, b, found[a // size]))
    low, high = np.int32(found[:, 0].min()), np.int32(found[:, 1].max())
    if high >= _INFINITY or low <= _key.py_func(np.int32(-0x00800000)):
        return torch.full((2,), torch.nan)
    ends = np.array([_key.py_func(low), _key.py_func(high)], np.int32).view(np.float32)
    return torch.from_numpy(ends) + 0.0


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


def histogram(x: Tensor) -> Tensor:
    """See ``reference.histogram``."""
    bits = _bits_of(x)
    parts = ranges(x.numel(), TILE)
    size = max(1, parts[0][1]) if parts else 1
    counts = np.zeros((len(parts), 4, BINS), np.int64)
    spread(x.numel(), TILE, lambda a, b: _coarse(bits, a, b, counts[a // size]))
    return torch.from_numpy(counts.sum((0, 1)))


def order_statistics(x: Tensor, ranks: list[int]) -> Tensor:
    """See ``reference.order_statistics``.

    Sorts nothing: a histogram of the keys' upper halves tells in which bin each rank lies, and histograms of the lower
    halves in those bins tell where in it. Less than half a histogram's worth of values is sorted sooner.
    """
    if x.numel() < BINS // 2:
        return reference.order_statistics(x, ranks)
    bits = _bits_of(x)
    wanted = np.array(ranks)
    parts = ranges(x.numel(), TILE)
    size = parts[0][1]
    counts = histogram(x).numpy()
    upto = counts.cumsum()
    bins = np.searchsorted(upto, wanted, side="right")
    distinct, slot_of = np.unique(bins, return_inverse=True)
    slots = np.zeros(BINS, np.uint16)
    slots[distinct] = np.arange(1, distinct.size + 1)
    # After a ReLU half of all values lie in the first bin above 0, and all of those are 0: no need to look closer.
    if slots[_ZERO_BIN] and _zeros(bits, 0, bits.size) == counts[_ZERO_BIN]:
        slots[_ZERO_BIN] = 0
    fine = np.zeros((len(parts), distinct.size, BINS), np.int64)
    spread(x.numel(), TILE, lambda a, b: _fine(bits, a, b, slots, fine[a // size]))
    inner = fine.sum(0).cumsum(1)
    before = np.where(bins > 0, upto[bins - 1], 0)
    places = [
        np.searchsorted(inner[slot], rank, side="right") for slot, rank in zip(slot_of, wanted - before, strict=True)
    ]
    lower = np.where(slots[bins] > 0, places, 0)
    keys = (((bins - _ZERO_BIN) << 16) | lower).astype(np.int32)
    values = (keys ^ ((keys >> 31) & 0x7FFFFFFF)).astype(np.int32).view(np.float32)
    return torch.from_numpy(values) + 0.0


def buckets(x: Tensor, lows: Tensor, scales: Tensor, value_bits: int, split_bits: int) -> Tensor:
    """See ``reference.buckets``."""
    bits = value_bits + split_bits
    if bool(lows[0].isnan()):
        return torch.zeros(packed_size(x.numel(), bits), dtype=torch.uint8)
    out = torch.empty(packed_size(x.numel(), bits), dtype=torch.uint8)
    given, target, starts, slopes = x.numpy(), out.numpy(), lows.numpy(), scales.numpy()
    spread(x.numel(), TILE, lambda a, b: _buckets(given, starts, slopes, value_bits, split_bits, target, a, b))
    return out


def nearest(x: Tensor, borders: Tensor, bits: int) -> Tensor:
    """See ``reference.nearest``."""
    out = torch.empty(packed_size(x.numel(), bits), dtype=torch.uint8)
    given, edges, target = x.numpy(), borders.numpy(), out.numpy()
    spread(x.numel(), TILE, lambda a, b: _nearest(given, edges, bits, target, a, b))
    return out
