"""The ends of buckets, and order statistics, on NVIDIA GPUs; same functions and same values as ``reference``.

::

    x  ──►  parts, of every tile: its least value, its greatest below each border, its greatest
                                               ──►  low, high, step and scale of every bucket
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinpipe.kernels.gpu import _EXACT, _key

TILE = 8192
WARPS = 8

_PARTS = 1024
"""Tiles whose ends are looked at together."""

_NOTHING = tl.constexpr(-0x7F800001)
"""The key of minus infinity, the greatest of no values."""

_INFINITY = tl.constexpr(0x7F800000)
_MOST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def _tile_ends(x, borders, parts, count, BORDERS: tl.constexpr, TILE: tl.constexpr):
    tile = tl.program_id(0).to(tl.int64)
    at = tile * TILE + tl.arange(0, TILE)
    there = at < count
    values = tl.load(x + at, mask=there, other=0.0)
    keys = _key(values.to(tl.int32, bitcast=True))
    tiles = tl.num_programs(0)
    tl.store(parts + tile, tl.min(tl.where(there, keys, 0x7FFFFFFF), axis=0))
    for number in range(BORDERS):
        below = there & (values < tl.load(borders + number))
        tl.store(parts + (number + 1) * tiles + tile, tl.max(tl.where(below, keys, _NOTHING), axis=0))
    tl.store(parts + (BORDERS + 1) * tiles + tile, tl.max(tl.where(there, keys, -0x80000000), axis=0))


@triton.jit
def _greatest(parts, tiles, CHUNKS: tl.constexpr, PARTS: tl.constexpr):
    found = tl.full([PARTS], -0x80000000, tl.int32)
    for chunk in range(CHUNKS):
        at = chunk * PARTS + tl.arange(0, PARTS)
        found = tl.maximum(found, tl.load(parts + at, mask=at < tiles, other=-0x80000000))
    return tl.max(found, axis=0)


@triton.jit
def _least(parts, tiles, CHUNKS: tl.constexpr, PARTS: tl.constexpr):
    found = tl.full([PARTS], 0x7FFFFFFF, tl.int32)
    for chunk in range(CHUNKS):
        at = chunk * PARTS + tl.arange(0, PARTS)
        found = tl.minimum(found, tl.load(parts + at, mask=at < tiles, other=0x7FFFFFFF))
    return tl.min(found, axis=0)


@triton.jit
def _value(key):
    return _key(key).to(tl.float32, bitcast=True) + 0.0


@triton.jit
def _lay_grids(parts, borders, out, tiles, levels, BORDERS: tl.constexpr, CHUNKS: tl.constexpr, PARTS: tl.constexpr):
    """Lays the grid of one bucket; see ``reference.grids_between``."""
    bucket = tl.program_id(0)
    least = _least(parts, tiles, CHUNKS, PARTS)
    greatest = _greatest(parts + (BORDERS + 1) * tiles, tiles, CHUNKS, PARTS)
    low = _value(least)
    if bucket > 0:
        low = tl.load(borders + bucket - 1)
    high = tl.maximum(_value(_greatest(parts + (bucket + 1) * tiles, tiles, CHUNKS, PARTS)), low)
    wide = (high.to(tl.float64) * 0.5 - low.to(tl.float64) * 0.5) / levels * 2.0
    most = tl.full([], _MOST, tl.float64)
    step = tl.minimum(tl.maximum(wide, 2.0 / most), most).to(tl.float32)
    step = tl.where(high == low, 0.0, step)
    scale = tl.minimum(2.0 / tl.where(step > 0.0, step, 1.0).to(tl.float64), most).to(tl.float32)
    scale = tl.where(step > 0.0, scale, 0.0)
    lost = (greatest >= _INFINITY) | (least <= _NOTHING)
    nan = float("nan")
    tl.store(out + bucket, tl.where(lost, nan, low))
    tl.store(out + (BORDERS + 1) + bucket, tl.where(lost, nan, high))
    tl.store(out + (BORDERS + 1) * 2 + bucket, tl.where(lost, nan, step))
    tl.store(out + (BORDERS + 1) * 3 + bucket, tl.where(lost, nan, scale))


def grids(x: Tensor, borders: Tensor, levels: int) -> Tensor:
    """See ``reference.grids``."""
    tiles, count = triton.cdiv(x.numel(), TILE), borders.numel()
    parts = torch.empty((count + 2, tiles), dtype=torch.int32, device=x.device)
    out = torch.empty((4, count + 1), device=x.device)
    _tile_ends[(tiles,)](x, borders, parts, x.numel(), count, TILE, num_warps=WARPS)
    chunks = triton.next_power_of_2(triton.cdiv(tiles, _PARTS))  # few different ones, each of which is compiled
    _lay_grids[(count + 1,)](parts, borders, out, tiles, levels, count, chunks, _PARTS, **_EXACT)
    return out


def extent(x: Tensor) -> Tensor:
    """See ``reference.extent``."""
    return grids(x, x[:0], 1)[:2, 0]


@lru_cache(maxsize=64)
def _places(ranks: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(ranks, device=device)


def order_statistics(x: Tensor, ranks: list[int]) -> Tensor:
    """See ``reference.order_statistics``; the ranks are sent to the device once, or every call would wait for it."""
    return torch.sort(x).values[_places(tuple(ranks), x.device)] + 0.0
