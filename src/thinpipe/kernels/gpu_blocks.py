"""The kernels for blocks on NVIDIA GPUs; same functions and same bytes as ``reference_blocks``.

A program works on several whole blocks. Sizes of blocks that are no power of two, or too large for a program, are left
to the reference.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinpipe.kernels import reference_blocks
from thinpipe.kernels.gpu import _EXACT, _ROWS, _bytes, _code, _grid, _key, _load_codes, _places, _seeded, _store_codes

TILE = 2048

_LEAST = tl.constexpr(2.0**-126)
_SLACK = tl.constexpr(1.0 / 2040.0)
_MOST = tl.constexpr(3.4028234663852886e38)
_POISON = tl.constexpr(0x7FC0)
_INFINITY = tl.constexpr(0x7F800000)
_LEAST_KEY = tl.constexpr(-0x7F800001)
"""The key of minus infinity."""


@triton.jit
def _spans(values, there, BITS: tl.constexpr):
    """Finds each row's step, as its bits, and its base, as a multiple; and whether the row is lost."""
    keys = _key(values.to(tl.int32, bitcast=True))
    low_key = tl.min(tl.where(there, keys, 0x7FFFFFFF), axis=1)
    high_key = tl.max(tl.where(there, keys, -0x80000000), axis=1)
    lost = (high_key >= _INFINITY) | (low_key <= _LEAST_KEY)
    low = tl.where(lost, 0.0, _key(low_key).to(tl.float32, bitcast=True))
    high = tl.where(lost, 0.0, _key(high_key).to(tl.float32, bitcast=True))
    factor = 2.0 / ((1 << BITS) - 1 - 1.0 / 16)
    step = tl.maximum((high * 0.5 - low * 0.5) * factor, tl.maximum(-low, high) * _SLACK)
    step = tl.where((low != 0.0) | (high != 0.0), tl.maximum(step, _LEAST), 0.0)
    step_bits = tl.minimum((step.to(tl.int32, bitcast=True) + 0xFFFF) >> 16, 0x7F7F)
    return step_bits, tl.floor(low * _reciprocal(step_bits) * 16.0), lost


@triton.jit
def _reciprocal(step_bits):
    step = (step_bits << 16).to(tl.float32, bitcast=True)
    return tl.where(step > 0.0, tl.div_rn(1.0, tl.where(step > 0.0, step, 1.0)), 0.0)


@triton.jit
def _half_step(step_bits):
    return (step_bits << 16).to(tl.float32, bitcast=True) * 0.5


@triton.jit
def _encode(
    x, meta, out, count, seed, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCKS: tl.constexpr, STOCHASTIC: tl.constexpr
):
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    at = block[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    there = at < count
    values = tl.load(x + at, mask=there, other=0.0)
    step_bits, multiple, lost = _spans(values, there, BITS)
    base = multiple * (_half_step(step_bits) * 0.0625)
    grid = (values * 0.5 - base[:, None]) * (_reciprocal(step_bits) * 2.0)[:, None]
    grid = tl.where(lost[:, None], 0.0, grid)
    codes = tl.where(there, _code(grid, at, seed, BITS, STOCHASTIC), 0)
    used = block * GROUP < count
    tl.store(meta + block * 2, tl.where(lost, _POISON, step_bits).to(tl.int16), mask=used)
    tl.store(meta + block * 2 + 1, multiple.to(tl.int16), mask=used)
    ROWS: tl.constexpr = BLOCKS * GROUP // 8
    first = tl.program_id(0).to(tl.int64) * ROWS
    _store_codes(tl.reshape(codes, [ROWS, 8]), out, first, count, BITS, ROWS)


@triton.jit
def _decode(meta, packed, out, count, group, BITS: tl.constexpr, ROWS: tl.constexpr):
    _, at = _places(ROWS)
    there = at < count
    block = at // group
    step = (tl.load(meta + block * 2, mask=there, other=0).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    half = step * 0.5
    base = tl.load(meta + block * 2 + 1, mask=there, other=0).to(tl.float32) * (half * 0.0625)
    value = (base + _load_codes(packed, at, count, BITS).to(tl.float32) * half) * 2.0
    bounded = tl.minimum(tl.maximum(value, -_MOST), _MOST)
    tl.store(out + at, tl.where(step * 0.0 == 0.0, bounded, step), mask=there)


def fits(group: int) -> bool:
    """Tells whether blocks of a size are for these kernels."""
    return 8 <= group <= TILE and group & (group - 1) == 0


def blocks_encode(x: Tensor, bits: int, group: int, seed: int | None) -> tuple[Tensor, Tensor]:
    """See ``reference_blocks.blocks_encode``."""
    if not fits(group):
        return reference_blocks.blocks_encode(x, bits, group, seed)
    meta = torch.empty((-(-x.numel() // group), 2), dtype=torch.int16, device=x.device)
    out = _bytes(x.numel(), bits, x)
    start, stochastic = _seeded(seed)
    grid = (triton.cdiv(x.numel(), TILE),)
    _encode[grid](x, meta, out, x.numel(), start, bits, group, TILE // group, stochastic, **_EXACT)
    return meta, out


def blocks_decode(meta: Tensor, packed: Tensor, count: int, bits: int, group: int) -> Tensor:
    """See ``reference_blocks.blocks_decode``."""
    out = torch.empty(count, device=packed.device)
    _decode[_grid(count)](meta, packed, out, count, group, bits, _ROWS, **_EXACT)
    return out
