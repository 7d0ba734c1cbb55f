"""Order statistics on the CPU without sorting, and the ends of buckets; same functions and bytes as ``reference``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinpipe.kernels import reference
from thinpipe.kernels.cpu_tiles import INFINITY, TILE, bits_of, compiled, inlined, key
from thinpipe.kernels.reference import BINS
from thinpipe.kernels.threads import ranges, spread

_NOTHING = np.int32(-0x7F800001)
"""The key of minus infinity, the greatest of no values."""

_ZERO_BIN = BINS // 2
_FEW = 5
"""Bins that are looked for at once; four buckets have borders in five bins at most, the ends included."""


@inlined
def _upper(bits: Any) -> Any:
    """Returns the bin of a histogram that a float's bits belong to."""
    return (np.uint32(key(bits)) ^ np.uint32(0x80000000)) >> np.uint32(16)


@compiled
def _coarse(bits: Any, start: int, stop: int, counts: Any) -> None:
    """Counts the values by the upper half of their keys, in several histograms: equal neighbours need not wait."""
    part = bits[start:stop]
    for k in range(part.size):
        counts[k & 3, _upper(part[k])] += np.uint32(1)


@compiled
def _fine(bits: Any, start: int, stop: int, slots: Any, counts: Any) -> None:
    """Counts the values of the wanted coarse bins by the lower half of their keys.

    Few values are in those bins: a tile is looked over, which vectorises, before any of it is looked up.
    """
    wanted = np.full(_FEW, np.uint32(0xFFFFFFFF), np.uint32)
    found = 0
    for slot in range(slots.size):
        if slots[slot]:
            if found < _FEW:
                wanted[found] = slot
            found += 1
    b0, b1, b2, b3, b4 = wanted[0], wanted[1], wanted[2], wanted[3], wanted[4]
    for at in range(start, stop, 32):
        part = bits[at : min(at + 32, stop)]
        near = np.uint32(found > _FEW)
        for k in range(part.size):
            upper = _upper(part[k])
            near |= np.uint32((upper == b0) | (upper == b1) | (upper == b2) | (upper == b3) | (upper == b4))
        if near:
            for k in range(part.size):
                slot = slots[_upper(part[k])]
                if slot:
                    counts[slot - 1, np.uint32(key(part[k])) & np.uint32(0xFFFF)] += np.uint32(1)


@compiled
def _zeros(bits: Any, start: int, stop: int, counts: Any) -> None:
    """Counts zeros, in 32 bits a tile, which vectorises."""
    for at in range(start, stop, TILE):
        part = bits[at : min(at + TILE, stop)]
        count = np.int32(0)
        for k in range(part.size):
            count += np.int32(part[k] == np.int32(0))
        counts[0] += count


@compiled
def _greatest_below(bits: Any, borders: Any, start: int, stop: int, found: Any) -> None:
    """Finds the least key, the greatest below each border, and the greatest of all."""
    low = np.int32(0x7FFFFFFF)
    high = np.int32(-0x80000000)
    keys = np.empty(TILE, np.int32)
    for at in range(start, stop, TILE):
        part = bits[at : min(at + TILE, stop)]
        for k in range(part.size):
            ordered = key(part[k])
            keys[k] = ordered
            low = min(low, ordered)
            high = max(high, ordered)
        for number in range(borders.size):
            border = borders[number]
            below = found[number + 1]
            for k in range(part.size):
                below = max(below, keys[k] if keys[k] < border else _NOTHING)
            found[number + 1] = below
    found[0] = low
    found[borders.size + 1] = high


def extent(x: Tensor) -> Tensor:
    """See ``reference.extent``."""
    low, high = _bucket_ends(x, torch.empty(0))
    return torch.cat([low, high])


def grids(x: Tensor, borders: Tensor, levels: int) -> Tensor:
    """See ``reference.grids``."""
    return reference.grids_between(*_bucket_ends(x, borders), levels)


def _bucket_ends(x: Tensor, borders: Tensor) -> tuple[Tensor, Tensor]:
    """Finds the least and the greatest value of each bucket; all NaN if any value is not finite."""
    bits, edges = bits_of(x), borders.numpy()
    # Both zeros are at the border 0, and the key of -0 is below that of 0.
    keys = np.where(edges == 0, np.int32(-1), _key(edges.view(np.int32))).astype(np.int32)
    parts = ranges(x.numel(), TILE)
    found = np.full((len(parts), edges.size + 2), _NOTHING, np.int32)
    size = parts[0][1]
    spread(x.numel(), TILE, lambda a, b: _greatest_below(bits, keys, a, b, found[a // size]))
    low, highs = found[:, 0].min(), found[:, 1:].max(0)
    if highs[-1] >= INFINITY or low <= _NOTHING:
        nothing = torch.full((edges.size + 1,), torch.nan)
        return nothing, nothing
    lows = torch.cat([_value(low[None]), borders])
    return lows, torch.maximum(_value(highs), lows)


def _key(bits: Any) -> Any:
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _value(keys: Any) -> Tensor:
    """Returns the floats of keys."""
    return torch.from_numpy(_key(keys).astype(np.int32).view(np.float32)) + 0.0


def histogram(x: Tensor) -> Tensor:
    """See ``reference.histogram``."""
    bits = bits_of(x)
    parts = ranges(x.numel(), TILE)
    size = max(1, parts[0][1]) if parts else 1
    counts = np.zeros((len(parts), 4, BINS), np.uint32)
    spread(x.numel(), TILE, lambda a, b: _coarse(bits, a, b, counts[a // size]))
    return torch.from_numpy(counts.sum((0, 1), dtype=np.int64))


def order_statistics(x: Tensor, ranks: list[int]) -> Tensor:
    """See ``reference.order_statistics``.

    Sorts nothing: a histogram of the keys' upper halves tells in which bin each rank lies, and histograms of the lower
    halves in those bins tell where in it. Less than half a histogram's worth of values is sorted sooner.
    """
    if x.numel() < BINS // 2:
        return reference.order_statistics(x, ranks)
    bits = bits_of(x)
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
    if slots[_ZERO_BIN]:
        zeros = np.zeros((len(parts), 1), np.int64)
        spread(x.numel(), TILE, lambda a, b: _zeros(bits, a, b, zeros[a // size]))
        if zeros.sum() == counts[_ZERO_BIN]:
            slots[_ZERO_BIN] = 0
    fine = np.zeros((len(parts), distinct.size, BINS), np.uint32)
    spread(x.numel(), TILE, lambda a, b: _fine(bits, a, b, slots, fine[a // size]))
    inner = fine.sum(0, dtype=np.int64).cumsum(1)
    before = np.where(bins > 0, upto[bins - 1], 0)
    places = [
        np.searchsorted(inner[slot], rank, side="right") for slot, rank in zip(slot_of, wanted - before, strict=True)
    ]
    lower = np.where(slots[bins] > 0, places, 0)
    keys = (((bins - _ZERO_BIN) << 16) | lower).astype(np.int32)
    return _value(keys)
