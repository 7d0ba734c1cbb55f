"""What the kernels for rotated blocks on NVIDIA GPUs are made of: spans, sums and levels of blocks, codes in planes.

Four threads share a block, and each has neighbours of it: codes are packed and unpacked without leaving a thread. See
``planes`` for what is packed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinpipe.kernels.gpu import _ROUNDER
from thinpipe.kernels.gpu_blocks import _LEAST, _SLACK, _reciprocal

_ROUNDER_BITS = tl.constexpr(0x4B400000)


@triton.jit
def _span(low, high, BITS: tl.constexpr):
    """Finds each block's step, as its bits, and its base, as a multiple; a step of 0 if an end is not finite."""
    finite = (low * 0.0 == 0.0) & (high * 0.0 == 0.0)
    low = tl.where(finite, low, 0.0)
    high = tl.where(finite, high, 0.0)
    factor = 2.0 / ((1 << BITS) - 1 - 1.0 / 16)
    peak = tl.maximum(-low, high)
    step = tl.maximum((high * 0.5 - low * 0.5) * factor, peak * _SLACK)
    step = tl.where((low != 0.0) | (high != 0.0), tl.maximum(step, _LEAST), 0.0)
    step_bits = tl.minimum((step.to(tl.int32, bitcast=True) + 0xFFFF) >> 16, 0x7F7F)
    reciprocal = _reciprocal(step_bits)
    return step_bits, reciprocal, tl.floor(low * reciprocal * 16.0), peak, finite


@triton.jit
def _found(places, edges, steps, BITS: tl.constexpr, CELL: tl.constexpr, CELLS: tl.constexpr):
    """Finds the level of each place, among those above 0: the level's integer, and in the lowest 8 bits its code.

    Few levels are compared one by one. Where there are many, the line of places is cut into cells so narrow that none
    has more than one border in it: a place is compared with the border of its cell alone, and is on the level at which
    the cell begins, or on the next one.
    """
    if BITS <= 4:
        found = tl.zeros_like(places).to(tl.int32) + tl.load(steps)
        for k in tl.static_range(1, 1 << (BITS - 1)):
            found = tl.where(places >= tl.load(edges + k - 1), tl.load(steps + k), found)
    else:
        cell = tl.fma(places, 1.0 / CELL, _ROUNDER).to(tl.int32, bitcast=True) - _ROUNDER_BITS
        cell = tl.minimum(tl.maximum(cell, 0), CELLS - 1)  # a NaN is anywhere
        found = tl.load(steps + cell + tl.where(places >= tl.load(edges + cell), 1, 0))
    return found


@triton.jit
def _float_bytes(codes, WIDTH: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr):
    """Packs codes of 1, 2 or 4 bits that are floats: a sum of products is cheaper than shifts of integers."""
    if WIDTH == 1:
        even, odd = tl.split(tl.reshape(codes, [ROWS, GROUP // 2, 2]))
        codes = tl.fma(odd, 2.0, even)
    if WIDTH <= 2:
        even, odd = tl.split(tl.reshape(codes, [ROWS, GROUP * WIDTH // 4, 2]))
        codes = tl.fma(odd, 4.0, even)
    even, odd = tl.split(tl.reshape(codes, [ROWS, GROUP * WIDTH // 8, 2]))
    return (tl.fma(odd, 16.0, even) + _ROUNDER).to(tl.int32, bitcast=True).to(tl.uint8)


@triton.jit
def _store_plane(
    codes, out, first, start: tl.constexpr, used, WIDTH: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Packs and stores the lowest bits of codes, [ROWS, WIDE], which begin at a column of their blocks."""
    EACH: tl.constexpr = WIDE * WIDTH // 8
    if WIDTH == 1:
        even, odd = tl.split(tl.reshape(codes & 1, [ROWS, 4 * EACH, 2]))
        codes = even | (odd << 1)
    if WIDTH <= 2:
        even, odd = tl.split(tl.reshape(codes & 3, [ROWS, 2 * EACH, 2]))
        codes = even | (odd << 2)
    if WIDTH <= 4:
        even, odd = tl.split(tl.reshape(codes, [ROWS, EACH, 2]))
        codes = (even & 15) | (odd << 4)
    row = first * (GROUP * WIDTH // 8) + tl.arange(0, ROWS)[:, None] * (GROUP * WIDTH // 8)
    tl.store(out + row + start * WIDTH // 8 + tl.arange(0, EACH)[None, :], codes, mask=used[:, None])


@triton.jit
def _store_codes(
    codes, out, first, start: tl.constexpr, used, total, BITS: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Stores codes of up to 8 bits in planes of 8, 4, 2 and 1."""
    if BITS == 8:
        _store_plane(codes, out, first, start, used, 8, ROWS, GROUP, WIDE)
    if BITS & 4:
        _store_plane(codes, out, first, start, used, 4, ROWS, GROUP, WIDE)
        out += total // 2
    if BITS & 2:
        _store_plane(codes >> (BITS & 4), out, first, start, used, 2, ROWS, GROUP, WIDE)
        out += total // 4
    if BITS & 1:
        _store_plane(codes >> (BITS & 6), out, first, start, used, 1, ROWS, GROUP, WIDE)


@triton.jit
def _load_plane(packed, first, used, WIDTH: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr):
    """Loads one plane of a tile's codes, [ROWS, GROUP]."""
    EACH: tl.constexpr = GROUP * WIDTH // 8
    at = tl.arange(0, ROWS)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    plane = tl.load(packed + first * EACH + at, mask=used[:, None], other=0)
    if WIDTH <= 4:
        plane = tl.reshape(tl.join(plane & 15, plane >> 4), [ROWS, 2 * EACH])
    if WIDTH <= 2:
        plane = tl.reshape(tl.join(plane & 3, plane >> 2), [ROWS, 4 * EACH])
    if WIDTH == 1:
        plane = tl.reshape(tl.join(plane & 1, plane >> 1), [ROWS, 8 * EACH])
    return plane


@triton.jit
def _load_codes(packed, first, used, total, BITS: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr):
    """Loads a tile's codes; the inverse of ``_store_codes``."""
    codes = tl.zeros([ROWS, GROUP], tl.uint8)
    if BITS == 8:
        codes = _load_plane(packed, first, used, 8, ROWS, GROUP)
    if BITS & 4:
        codes |= _load_plane(packed, first, used, 4, ROWS, GROUP)
        packed += total // 2
    if BITS & 2:
        codes |= _load_plane(packed, first, used, 2, ROWS, GROUP) << (BITS & 4)
        packed += total // 4
    if BITS & 1:
        codes |= _load_plane(packed, first, used, 1, ROWS, GROUP) << (BITS & 6)
    return codes
