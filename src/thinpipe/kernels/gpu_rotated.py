"""The kernels for rotated blocks on NVIDIA GPUs; same functions and same bytes as ``reference_blocks``."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinpipe.kernels import reference_blocks
from thinpipe.kernels.gpu import _EXACT, _code, _load_codes, _store_codes
from thinpipe.kernels.gpu_blocks import _INFINITY, _LEAST, _MOST, _POISON, TILE, _half_step, _reciprocal, _spans, fits
from thinpipe.kernels.planes import packed_size

_ROTATED = tl.constexpr(reference_blocks.ROTATED)


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
def _power_below(x):
    return tl.maximum((x.to(tl.int32, bitcast=True) & _INFINITY).to(tl.float32, bitcast=True), _LEAST)


@triton.jit
def _encode(
    x,
    levels,
    borders,
    signs,
    meta,
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
    values = tl.load(x + tl.minimum(at, count - 1))
    step_bits, multiple, lost = _spans(values, at >= 0, BITS)
    values = tl.where(lost[:, None], 0.0, values)
    half_step = _half_step(step_bits)
    base = multiple * (half_step * 0.0625)
    even = _code((values * 0.5 - base[:, None]) * (_reciprocal(step_bits) * 2.0)[:, None], at, at, BITS, False)
    unit = _power_below(tl.max(tl.abs(values), axis=1))
    scaled = tl.div_rn(values, tl.broadcast_to(unit[:, None], [BLOCKS, GROUP]))
    decoded = base[:, None] + even.to(tl.float32) * half_step[:, None]
    rest = scaled - decoded * tl.div_rn(tl.full([BLOCKS], 2.0, tl.float32), unit)[:, None]
    even_error = _tree_sum(rest * rest, BLOCKS, GROUP, STAGES)
    turned = _rotate(scaled * tl.load(signs + tl.arange(0, GROUP))[None, :], BLOCKS, GROUP, STAGES)
    square = _tree_sum(turned * turned, BLOCKS, GROUP, STAGES)
    deviation = tl.sqrt_rn(square * (1.0 / GROUP))
    inverse = tl.where(deviation > 0.0, tl.div_rn(1.0, tl.where(deviation > 0.0, deviation, 1.0)), 0.0)
    places = turned * inverse[:, None]
    codes = tl.zeros_like(places).to(tl.int32)
    for k in range((1 << BITS) - 1):
        codes += tl.where(places >= tl.load(borders + k), 1, 0)
    chosen = tl.load(levels + codes)
    along = _tree_sum(turned * chosen, BLOCKS, GROUP, STAGES)
    norm = _tree_sum(chosen * chosen, BLOCKS, GROUP, STAGES)
    scale = tl.maximum(tl.div_rn(along, norm), 0.0) * (1.0 / GROUP) * unit
    scale_bits = tl.minimum((scale.to(tl.int32, bitcast=True) + 0x8000) >> 16, 0x7F7F)
    scale = tl.div_rn((scale_bits << 16).to(tl.float32, bitcast=True), unit) * (1.0 * GROUP)
    turned_error = (square - scale * (along * 2.0 - scale * norm)) * (1.0 / GROUP)
    turns = turned_error < even_error
    codes = tl.where(turns[:, None], codes, even)
    codes = tl.where(lost[:, None] | (at >= total), 0, codes)
    used = block * GROUP < count
    first_half = tl.where(turns, scale_bits, step_bits)
    tl.store(meta + block * 2, tl.where(lost, _POISON, first_half).to(tl.int16), mask=used)
    tl.store(meta + block * 2 + 1, tl.where(turns, _ROTATED, multiple.to(tl.int32)).to(tl.int16), mask=used)
    ROWS: tl.constexpr = BLOCKS * GROUP // 8
    first = tl.program_id(0).to(tl.int64) * ROWS
    _store_codes(tl.reshape(codes, [ROWS, 8]), out, first, total, BITS, ROWS)


@triton.jit
def _decode(
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
    used = block * GROUP < count
    scale = (tl.load(meta + block * 2, mask=used, other=0).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    multiple = tl.load(meta + block * 2 + 1, mask=used, other=0).to(tl.int32)
    lost = scale * 0.0 != 0.0
    unit = _power_below(scale)
    share = tl.div_rn(tl.where(lost, 0.0, scale), unit)
    turned = _rotate(tl.load(levels + codes) * share[:, None], BLOCKS, GROUP, STAGES)
    turned = turned * tl.load(signs + tl.arange(0, GROUP))[None, :] * unit[:, None]
    half = scale * 0.5
    even = ((multiple.to(tl.float32) * (half * 0.0625))[:, None] + codes.to(tl.float32) * half[:, None]) * 2.0
    values = tl.where((multiple == _ROTATED)[:, None], turned, even)
    bounded = tl.minimum(tl.maximum(values, -_MOST), _MOST)
    tl.store(out + at, tl.where(lost[:, None], scale[:, None], bounded), mask=at < count)


@cache
def _signs(group: int, device: torch.device) -> Tensor:
    return reference_blocks.signs(group).to(device)


def hadamard_encode(x: Tensor, levels: Tensor, borders: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """See ``reference_blocks.hadamard_encode``."""
    if not fits(group):
        return reference_blocks.hadamard_encode(x, levels, borders, group)
    bits, stages = int(levels.numel()).bit_length() - 1, group.bit_length() - 1
    blocks = -(-x.numel() // group)
    total = blocks * group
    meta = torch.empty((blocks, 2), dtype=torch.int16, device=x.device)
    out = torch.empty(packed_size(total, bits), dtype=torch.uint8, device=x.device)
    turn = _signs(group, x.device)
    grid = (triton.cdiv(total, TILE),)
    _encode[grid](x, levels, borders, turn, meta, out, x.numel(), total, bits, group, TILE // group, stages, **_EXACT)
    return meta, out


def hadamard_decode(meta: Tensor, packed: Tensor, levels: Tensor, count: int, group: int) -> Tensor:
    """See ``reference_blocks.hadamard_decode``."""
    if not fits(group):
        return reference_blocks.hadamard_decode(meta, packed, levels, count, group)
    bits, stages = int(levels.numel()).bit_length() - 1, group.bit_length() - 1
    total = meta.shape[0] * group
    out = torch.empty(count, device=packed.device)
    turn = _signs(group, packed.device)
    grid = (triton.cdiv(total, TILE),)
    _decode[grid](meta, packed, levels, turn, out, count, total, bits, group, TILE // group, stages, **_EXACT)
    return out
