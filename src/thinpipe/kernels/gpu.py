"""The kernels for NVIDIA GPUs, compiled by triton; same functions and same bytes as ``reference``.

A program works on a tile of values, eight in a row, because eight codes of any width fill whole bytes. Products and
sums are not fused (``enable_fp_fusion=False``) and divisions are rounded once: either would change bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinpipe.kernels.planes import packed_size

_ROWS = 256
"""Rows of eight values in a tile."""

_ROUNDER = tl.constexpr(12582912.0)
"""Added and taken away again, it rounds a float32 to the nearest integer, a tie to the even one: 1.5 * 2**23."""

_EXACT = {"enable_fp_fusion": False}


@triton.jit
def _nearest_integer(x):
    return (x + _ROUNDER) - _ROUNDER


@triton.jit
def _hash(index, seed):
    h = (index.to(tl.uint32) ^ seed.to(tl.uint32)) * 0x9E3779B1
    h = (h ^ (h >> 15)) * 0x85EBCA77
    h = (h ^ (h >> 13)) * 0xC2B2AE3D
    return h ^ (h >> 16)


@triton.jit
def _code(grid, index, seed, BITS: tl.constexpr, STOCHASTIC: tl.constexpr):
    """Rounds a place on a grid to a code."""
    top = (1 << BITS) - 1
    if STOCHASTIC:
        grid = tl.floor(grid + (_hash(index, seed) >> 16).to(tl.float32) * 0.0000152587890625)
        return tl.minimum(tl.maximum(grid, 0.0), top * 1.0).to(tl.int32)
    return _nearest_integer(tl.minimum(tl.maximum(grid, 0.0), top * 1.0)).to(tl.int32)


@triton.jit
def _store_plane(codes, out, first, size, SHIFT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Stores one plane of a tile of codes, [ROWS, 8], which begins at row ``first``; the plane has ``size`` bytes."""
    values = (codes >> SHIFT) & ((1 << WIDTH) - 1)
    EACH: tl.constexpr = 8 // WIDTH
    lanes = tl.reshape(values, [ROWS, WIDTH, EACH])
    shifts = tl.arange(0, EACH) * WIDTH
    packed = tl.sum(lanes << shifts[None, None, :], axis=2)
    at = (first + tl.arange(0, ROWS))[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(out + at, packed.to(tl.uint8), mask=at < size)


@triton.jit
def _store_codes(codes, out, first, count, BITS: tl.constexpr, ROWS: tl.constexpr):
    """Stores a tile of codes in planes of 8, 4, 2 and 1 bits."""
    REST: tl.constexpr = BITS % 8
    BYTES: tl.constexpr = BITS // 8
    if BYTES >= 1:
        _store_plane(codes, out, first, count, 0, 8, ROWS)
    if BYTES == 2:
        _store_plane(codes, out + count, first, count, 8, 8, ROWS)
    out += BYTES * count
    if REST & 4:
        size = (count * 4 + 7) // 8
        _store_plane(codes, out, first, size, BYTES * 8, 4, ROWS)
        out += size
    if REST & 2:
        size = (count * 2 + 7) // 8
        _store_plane(codes, out, first, size, BYTES * 8 + (REST & 4), 2, ROWS)
        out += size
    if REST & 1:
        _store_plane(codes, out, first, (count + 7) // 8, BYTES * 8 + (REST & 6), 1, ROWS)


@triton.jit
def _load_codes(packed, at, count, BITS: tl.constexpr):
    """Loads the codes at given places."""
    REST: tl.constexpr = BITS % 8
    BYTES: tl.constexpr = BITS // 8
    there = at < count
    codes = tl.zeros_like(at).to(tl.int32)
    if BYTES >= 1:
        codes |= tl.load(packed + at, mask=there, other=0).to(tl.int32)
    if BYTES == 2:
        codes |= tl.load(packed + count + at, mask=there, other=0).to(tl.int32) << 8
    packed += BYTES * count
    if REST & 4:
        byte = tl.load(packed + at // 2, mask=there, other=0).to(tl.int32)
        codes |= ((byte >> ((at % 2) * 4).to(tl.int32)) & 15) << (BYTES * 8)
        packed += (count * 4 + 7) // 8
    if REST & 2:
        byte = tl.load(packed + at // 4, mask=there, other=0).to(tl.int32)
        codes |= ((byte >> ((at % 4) * 2).to(tl.int32)) & 3) << (BYTES * 8 + (REST & 4))
        packed += (count * 2 + 7) // 8
    if REST & 1:
        byte = tl.load(packed + at // 8, mask=there, other=0).to(tl.int32)
        codes |= ((byte >> (at % 8).to(tl.int32)) & 1) << (BYTES * 8 + (REST & 6))
    return codes


@triton.jit
def _places(ROWS: tl.constexpr):
    """Tells the first row of this program's tile, and the places of its values, [ROWS, 8]."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    return first, (first + tl.arange(0, ROWS))[:, None] * 8 + tl.arange(0, 8)[None, :]


@triton.jit
def _affine(x, low, scale, out, count, seed, BITS: tl.constexpr, STOCHASTIC: tl.constexpr, ROWS: tl.constexpr):
    first, at = _places(ROWS)
    start = tl.load(low)
    values = tl.load(x + at, mask=at < count, other=0.0)
    grid = (values * 0.5 - start * 0.5) * tl.load(scale)
    grid = tl.where(start * 0.0 == 0.0, grid, 0.0)
    codes = tl.where(at < count, _code(grid, at, seed, BITS, STOCHASTIC), 0)
    _store_codes(codes, out, first, count, BITS, ROWS)


@triton.jit
def _buckets(x, lows, scales, out, count, VALUE_BITS: tl.constexpr, SPLIT_BITS: tl.constexpr, ROWS: tl.constexpr):
    first, at = _places(ROWS)
    start = tl.load(lows)
    values = tl.load(x + at, mask=at < count, other=0.0)
    base = tl.zeros_like(values) + start
    scale = tl.zeros_like(values) + tl.load(scales)
    number = tl.zeros_like(values).to(tl.int32)
    for bucket in tl.static_range(1, 1 << SPLIT_BITS):
        border = tl.load(lows + bucket)
        above = values >= border
        base = tl.where(above, border, base)
        scale = tl.where(above, tl.load(scales + bucket), scale)
        number = tl.where(above, bucket, number)
    grid = (values * 0.5 - base * 0.5) * scale
    grid = tl.where(start * 0.0 == 0.0, grid, 0.0)
    codes = _code(grid, at, at, VALUE_BITS, False) | (number << VALUE_BITS)
    codes = tl.where(at < count, codes, 0)
    _store_codes(codes, out, first, count, VALUE_BITS + SPLIT_BITS, ROWS)


@triton.jit
def _nearest(x, borders, out, count, BITS: tl.constexpr, ROWS: tl.constexpr):
    first, at = _places(ROWS)
    values = tl.load(x + at, mask=at < count, other=0.0)
    codes = tl.zeros_like(values).to(tl.int32)
    for k in range((1 << BITS) - 1):
        codes += tl.where(values < tl.load(borders + k), 0, 1)
    codes = tl.where(at < count, codes, 0)
    _store_codes(codes, out, first, count, BITS, ROWS)


@triton.jit
def _lookup(packed, table, out, count, BITS: tl.constexpr, ROWS: tl.constexpr):
    _, at = _places(ROWS)
    codes = _load_codes(packed, at, count, BITS)
    tl.store(out + at, tl.load(table + codes), mask=at < count)


@triton.jit
def _key(bits):
    """Maps the bits of a float to an integer that orders as the float does."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _grid(count: int) -> tuple[int]:
    return (triton.cdiv(count, 8 * _ROWS),)


def _seeded(seed: int | None) -> tuple[int, bool]:
    return (0, False) if seed is None else (seed, True)


def _bytes(count: int, bits: int, like: Tensor) -> Tensor:
    return torch.empty(packed_size(count, bits), dtype=torch.uint8, device=like.device)


def affine(x: Tensor, low: Tensor, scale: Tensor, bits: int, seed: int | None) -> Tensor:
    """See ``reference.affine``."""
    out = _bytes(x.numel(), bits, x)
    start, stochastic = _seeded(seed)
    _affine[_grid(x.numel())](x, low, scale, out, x.numel(), start, bits, stochastic, _ROWS, **_EXACT)
    return out


def buckets(x: Tensor, lows: Tensor, scales: Tensor, value_bits: int, split_bits: int) -> Tensor:
    """See ``reference.buckets``."""
    out = _bytes(x.numel(), value_bits + split_bits, x)
    lows, scales = lows.contiguous(), scales.contiguous()
    _buckets[_grid(x.numel())](x, lows, scales, out, x.numel(), value_bits, split_bits, _ROWS, **_EXACT)
    return out


def nearest(x: Tensor, borders: Tensor, bits: int) -> Tensor:
    """See ``reference.nearest``."""
    out = _bytes(x.numel(), bits, x)
    _nearest[_grid(x.numel())](x, borders, out, x.numel(), bits, _ROWS)
    return out


def lookup(packed: Tensor, table: Tensor, count: int, bits: int) -> Tensor:
    """See ``reference.lookup``."""
    out = torch.empty(count, device=packed.device)
    _lookup[_grid(count)](packed, table.contiguous(), out, count, bits, _ROWS)
    return out
