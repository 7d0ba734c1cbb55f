"""The kernels for blocks on NVIDIA GPUs; same functions and same bytes as ``reference``.

A program works on several whole blocks. Sizes of blocks that are no power of two, or too large for a program, are left
to the reference.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinpipe.kernels import reference
from thinpipe.kernels.gpu import _EXACT, _ROWS, _bytes, _code, _grid, _key, _load_codes, _places, _seeded, _store_codes
from thinpipe.kernels.planes import packed_size

_TILE = 2048

_LEAST = tl.constexpr(2.0**-126)
_SLACK = tl.constexpr(1.0 / 2040.0)
_MOST = tl.constexpr(3.4028234663852886e38)
_INFINITY = tl.constexpr(0x7F800000)
_LEAST_KEY = tl.constexpr(-0x7F800001)
"""The key of minus infinity."""


@triton.jit
def _encode(
    x, meta, out, count, seed, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCKS: tl.constexpr, STOCHASTIC: tl.constexpr
):
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    at = block[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    there = at < count
    values = tl.load(x + at, mask=there, other=0.0)
    keys = _key(values.to(tl.int32, bitcast=True))
    low_key = tl.min(tl.where(there, keys, 0x7FFFFFFF), axis=1)
    high_key = tl.max(tl.where(there, keys, -0x80000000), axis=1)
    lost = (high_key >= _INFINITY) | (low_key <= _LEAST_KEY)
    low = tl.where(lost, 0.0, _key(low_key).to(tl.float32, bitcast=True))
    high = tl.where(lost, 0.0, _key(high_key).to(tl.float32, bitcast=True))
    factor = 2.0 / ((1 << BITS) - 1 - 1.0 / 16)
    step = tl.maximum((high * 0.5 - low * 0.5) * factor, tl.maximum(-low, high) * _SLACK)
    step = tl.where((low != 0.0) | (high != 0.0), tl.maximum(step, _LEAST), step)
    step_bits = tl.minimum((step.to(tl.int32, bitcast=True) + 0xFFFF) >> 16, 0x7F7F)
    step = (step_bits << 16).to(tl.float32, bitcast=True)
    reciprocal = tl.where(step > 0.0, tl.div_rn(1.0, tl.where(step > 0.0, step, 1.0)), 0.0)
    multiple = tl.floor(low * reciprocal * 16.0)
    base = multiple * (step * 0.03125)
    grid = (values * 0.5 - base[:, None]) * (reciprocal * 2.0)[:, None]
    grid = tl.where(lost[:, None], 0.0, grid)
    codes = tl.where(there, _code(grid, at, seed, BITS, STOCHASTIC), 0)
    used = block * GROUP < count
    tl.store(meta + block * 2, tl.where(lost, 0x7FC0, step_bits).to(tl.int16), mask=used)
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


@triton.jit
def _rotate(rows, BLOCKS: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr):
    """Applies the Hadamard transform to each row by butterflies, from the nearest neighbours up."""
    for stage in tl.static_range(STAGES):
        SPAN: tl.constexpr = 1 << stage
        pairs = tl.permute(tl.reshape(rows, [BLOCKS * GROUP // (2 * SPAN), 2, SPAN]), [0, 2, 1])
        a, b = tl.split(pairs)
        rows = tl.reshape(tl.permute(tl.join(a + b, a - b), [0, 2, 1]), [BLOCKS, GROUP])
    return rows


@triton.jit
def _tree_sum(rows, BLOCKS: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr):
    """Sums each row by adding its second half to its first, again and again."""
    for stage in tl.static_range(STAGES):
        HALF: tl.constexpr = GROUP >> (stage + 1)
        a, b = tl.split(tl.permute(tl.reshape(rows, [BLOCKS, 2, HALF]), [0, 2, 1]))
        rows = a + b
    return tl.reshape(rows, [BLOCKS])


@triton.jit
def _hadamard_encode(
    x,
    levels,
    borders,
    signs,
    meta,
    out,
    count,
    total,
    threshold,
    even_share,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCKS: tl.constexpr,
    STAGES: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    at = block[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    values = tl.load(x + at, mask=at < count, other=0.0)
    peak_bits = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    lost = peak_bits >= _INFINITY
    peak = tl.where(lost, 0, peak_bits).to(tl.float32, bitcast=True)
    unit = tl.maximum((peak.to(tl.int32, bitcast=True) & _INFINITY).to(tl.float32, bitcast=True), _LEAST)
    values = tl.where(lost[:, None], 0.0, values)
    scaled = tl.div_rn(values, tl.broadcast_to(unit[:, None], [BLOCKS, GROUP]))
    top = tl.div_rn(peak, unit)
    sign = tl.load(signs + tl.arange(0, GROUP))
    turned = _rotate(scaled * sign[None, :], BLOCKS, GROUP, STAGES)
    square = _tree_sum(turned * turned, BLOCKS, GROUP, STAGES)
    positive = tl.min(tl.where(values < 0.0, 0, 1), axis=1) == 1
    straight = positive & (top * top * threshold <= square)
    deviation = tl.sqrt_rn(square * (1.0 / GROUP))
    inverse = tl.where(deviation > 0.0, tl.div_rn(1.0, tl.where(deviation > 0.0, deviation, 1.0)), 0.0)
    places = turned * inverse[:, None]
    codes = tl.zeros_like(places).to(tl.int32)
    for k in range((1 << BITS) - 1):
        codes += tl.where(places >= tl.load(borders + k), 1, 0)
    chosen = tl.load(levels + codes)
    along = _tree_sum(turned * chosen, BLOCKS, GROUP, STAGES)
    norm = _tree_sum(chosen * chosen, BLOCKS, GROUP, STAGES)
    turned_scale = tl.div_rn(along, norm) * (1.0 / GROUP)
    scale = tl.maximum(tl.where(straight, top * even_share, turned_scale), 0.0) * unit
    rounded = tl.where(straight, 0xFFFF, 0x8000)
    scale_bits = tl.minimum((scale.to(tl.int32, bitcast=True) + rounded) >> 16, 0x7F7F)
    step = (scale_bits << 16).to(tl.float32, bitcast=True)
    reciprocal = tl.where(step >= _LEAST, tl.div_rn(unit, tl.where(step >= _LEAST, step, 1.0)), 0.0)
    even = _code(scaled * reciprocal[:, None], at, at, BITS, False)
    codes = tl.where(straight[:, None], even, codes)
    codes = tl.where(lost[:, None], 0, codes)
    scale_bits = tl.where(straight, scale_bits - 0x8000, scale_bits)
    tl.store(meta + block, tl.where(lost, 0x7FC0, scale_bits).to(tl.int16), mask=block * GROUP < count)
    ROWS: tl.constexpr = BLOCKS * GROUP // 8
    first = tl.program_id(0).to(tl.int64) * ROWS
    codes = tl.where(at < total, codes, 0)
    _store_codes(tl.reshape(codes, [ROWS, 8]), out, first, total, BITS, ROWS)


@triton.jit
def _hadamard_decode(
    meta,
    packed,
    levels,
    signs,
    out,
    count,
    total,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCKS: tl.constexpr,
    STAGES: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    at = block[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    codes = _load_codes(packed, at, total, BITS)
    head = tl.load(meta + block, mask=block * GROUP < count, other=0).to(tl.int32)
    scale = ((head & 0x7FFF) << 16).to(tl.float32, bitcast=True)
    lost = scale * 0.0 != 0.0
    unit = tl.maximum((scale.to(tl.int32, bitcast=True) & _INFINITY).to(tl.float32, bitcast=True), _LEAST)
    share = tl.div_rn(tl.where(lost, 0.0, scale), unit)
    turned = _rotate(tl.load(levels + codes) * share[:, None], BLOCKS, GROUP, STAGES)
    turned = turned * tl.load(signs + tl.arange(0, GROUP))[None, :] * unit[:, None]
    values = tl.where((head < 0)[:, None], codes.to(tl.float32) * scale[:, None], turned)
    bounded = tl.minimum(tl.maximum(values, -_MOST), _MOST)
    tl.store(out + at, tl.where(lost[:, None], scale[:, None], bounded), mask=at < count)


def _fits(group: int) -> bool:
    return 8 <= group <= _TILE and group & (group - 1) == 0


def blocks_encode(x: Tensor, bits: int, group: int, seed: int | None) -> tuple[Tensor, Tensor]:
    """See ``reference.blocks_encode``."""
    if not _fits(group):
        return reference.blocks_encode(x, bits, group, seed)
    meta = torch.empty((-(-x.numel() // group), 2), dtype=torch.int16, device=x.device)
    out = _bytes(x.numel(), bits, x)
    start, stochastic = _seeded(seed)
    grid = (triton.cdiv(x.numel(), _TILE),)
    _encode[grid](x, meta, out, x.numel(), start, bits, group, _TILE // group, stochastic, **_EXACT)
    return meta, out


def blocks_decode(meta: Tensor, packed: Tensor, count: int, bits: int, group: int) -> Tensor:
    """See ``reference.blocks_decode``."""
    out = torch.empty(count, device=packed.device)
    _decode[_grid(count)](meta, packed, out, count, group, bits, _ROWS, **_EXACT)
    return out


@cache
def _signs(group: int, device: torch.device) -> Tensor:
    return reference.signs(group).to(device)


def hadamard_encode(x: Tensor, levels: Tensor, borders: Tensor, group: int, plain: float) -> tuple[Tensor, Tensor]:
    """See ``reference.hadamard_encode``."""
    if not _fits(group):
        return reference.hadamard_encode(x, levels, borders, group, plain)
    bits = int(levels.numel()).bit_length() - 1
    blocks = -(-x.numel() // group)
    total = blocks * group
    meta = torch.empty(blocks, dtype=torch.int16, device=x.device)
    out = torch.empty(packed_size(total, bits), dtype=torch.uint8, device=x.device)
    _hadamard_encode[(triton.cdiv(total, _TILE),)](
        x,
        levels,
        borders,
        _signs(group, x.device),
        meta,
        out,
        x.numel(),
        total,
        plain * group * group,
        1.0 / (2**bits - 1),
        bits,
        group,
        _TILE // group,
        group.bit_length() - 1,
        **_EXACT,
    )
    return meta, out


def hadamard_decode(scales: Tensor, packed: Tensor, levels: Tensor, count: int, group: int) -> Tensor:
    """See ``reference.hadamard_decode``."""
    if not _fits(group):
        return reference.hadamard_decode(scales, packed, levels, count, group)
    bits = int(levels.numel()).bit_length() - 1
    total = scales.numel() * group
    out = torch.empty(count, device=packed.device)
    _hadamard_decode[(triton.cdiv(total, _TILE),)](
        scales,
        packed,
        levels,
        _signs(group, packed.device),
        out,
        count,
        total,
        bits,
        group,
        _TILE // group,
        group.bit_length() - 1,
        **_EXACT,
    )
    return out
