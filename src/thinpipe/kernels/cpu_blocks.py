"""The kernels for blocks on the CPU; same functions and same bytes as ``reference``."""

from __future__ import annotations

from functools import cache
from math import lcm
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinpipe.kernels import reference
from thinpipe.kernels.cpu import _INFINITY, _compiled, _die, _key, _pack_tile, _unpack_tile
from thinpipe.kernels.planes import packed_size
from thinpipe.kernels.threads import spread

_LEAST = np.float32(2.0**-126)
_SLACK = np.float32(1.0 / 2040.0)
_MOST = np.float32(np.finfo(np.float32).max)
_POISON = np.int16(0x7FC0)
_LEAST_BITS = np.int32(-0x00800000)


@_compiled
def _encode(x: Any, bits: int, group: int, seed: int, view: Any, meta: Any, out: Any, start: int, stop: int) -> None:
    """Encodes elements start to stop, in tiles of whole blocks whose codes fill whole bytes."""
    blocks = max(1, 1024 // group)
    if group % 8:
        blocks = (blocks + 7) // 8 * 8
    tile = np.empty(blocks * group + 8, np.uint16)
    scratch = np.empty(2, np.float32)
    scratch_bits = scratch.view(np.int32)
    half = np.float32(0.5)
    zero = np.float32(0)
    one = np.float32(1)
    fractions = np.float32(16)
    sixteenth = np.float32(1.0 / 16)
    top = np.float32((1 << bits) - 1)
    factor = np.float32(2.0 / (((1 << bits) - 1) - 1.0 / 16))
    least_key = _key(_LEAST_BITS)
    for at in range(start, stop, blocks * group):
        size = min(blocks * group, stop - at)
        for first in range(0, size, group):
            n = min(group, size - first)
            a = at + first
            low_key = np.int32(0x7FFFFFFF)
            high_key = np.int32(-0x80000000)
            for k in range(n):
                key = _key(view[a + k])
                low_key = min(low_key, key)
                high_key = max(high_key, key)
            number = a // group
            if high_key >= _INFINITY or low_key <= least_key:
                meta[number, 0] = _POISON
                meta[number, 1] = 0
                for k in range(n):
                    tile[first + k] = 0
                continue
            scratch_bits[0] = _key(low_key)
            scratch_bits[1] = _key(high_key)
            low = scratch[0]
            high = scratch[1]
            step = max((high * half - low * half) * factor, max(-low, high) * _SLACK)
            if low != zero or high != zero:
                step = max(step, _LEAST)
            scratch[0] = step
            step_bits = min((scratch_bits[0] + np.int32(0xFFFF)) >> np.int32(16), np.int32(0x7F7F))
            scratch_bits[0] = step_bits << np.int32(16)
            step = scratch[0]
            reciprocal = one / step if step > zero else zero
            multiple = np.floor(low * reciprocal * fractions)
            base = multiple * (step * sixteenth * half)
            scale = reciprocal * np.float32(2)
            meta[number, 0] = np.int16(step_bits)
            meta[number, 1] = np.int16(multiple)
            if seed < 0:
                for k in range(n):
                    grid = np.rint((x[a + k] * half - base) * scale)
                    tile[first + k] = np.uint16(np.int32(min(max(grid, zero), top)))
            else:
                dice = np.uint32(seed)
                for k in range(n):
                    grid = np.floor((x[a + k] * half - base) * scale + _die(a + k, dice))
                    tile[first + k] = np.uint16(np.int32(min(max(grid, zero), top)))
        _pack_tile(tile, size, bits, out, x.size, at)


@_compiled
def _decode(meta: Any, packed: Any, bits: int, group: int, out: Any, start: int, stop: int) -> None:
    blocks = max(1, 1024 // group)
    if group % 8:
        blocks = (blocks + 7) // 8 * 8
    tile = np.empty(blocks * group + 8, np.uint16)
    scratch = np.empty(1, np.float32)
    scratch_bits = scratch.view(np.int32)
    sixteenth = np.float32(1.0 / 16)
    for at in range(start, stop, blocks * group):
        size = min(blocks * group, stop - at)
        _unpack_tile(packed, size, bits, tile, out.size, at)
        for first in range(0, size, group):
            n = min(group, size - first)
            number = (at + first) // group
            scratch_bits[0] = np.int32(meta[number, 0]) << np.int32(16)
            step = scratch[0]
            half = step * np.float32(0.5)
            base = np.float32(meta[number, 1]) * (half * sixteenth)
            if step != step:
                for k in range(n):
                    out[at + first + k] = step
            else:
                for k in range(n):
                    value = (base + np.float32(tile[first + k]) * half) * np.float32(2)
                    out[at + first + k] = min(max(value, -_MOST), _MOST)


@_compiled
def _rotate(row: Any, group: int) -> None:
    span = 1
    while span < group:
        for first in range(0, group, 2 * span):
            for k in range(first, first + span):
                a = row[k]
                b = row[k + span]
                row[k] = a + b
                row[k + span] = a - b
        span *= 2


@_compiled
def _tree_sum(row: Any, group: int) -> Any:
    half = group // 2
    while half:
        for k in range(half):
            row[k] += row[k + half]
        half //= 2
    return row[0]


@_compiled
def _hadamard_encode(
    x: Any, levels: Any, borders: Any, signs: Any, plain: Any, meta: Any, out: Any, start: int, stop: int
) -> None:
    """Encodes blocks start to stop, in tiles of 8 blocks."""
    group = signs.size
    bits = 0
    while (1 << bits) < levels.size:
        bits += 1
    total = meta.size * group
    tile = np.empty(8 * group + 8, np.uint16)
    scaled = np.empty(group, np.float32)
    turned = np.empty(group, np.float32)
    work = np.empty(group, np.float32)
    scratch = np.empty(1, np.float32)
    scratch_bits = scratch.view(np.int32)
    zero = np.float32(0)
    one = np.float32(1)
    share = np.float32(1.0 / group)
    even_share = np.float32(1.0 / ((1 << bits) - 1))
    threshold = np.float32(plain * group * group)
    top_code = np.float32((1 << bits) - 1)
    for at in range(start, stop, 8):
        count = min(8, stop - at)
        for block in range(count):
            first = (at + block) * group
            n = min(group, x.size - first)
            peak_bits = np.int32(0)
            negative = False
            for k in range(n):
                value = x[first + k]
                scaled[k] = value
                negative |= value < zero
            for k in range(n, group):
                scaled[k] = zero
            scaled_bits = scaled.view(np.int32)
            for k in range(group):
                peak_bits = max(peak_bits, scaled_bits[k] & np.int32(0x7FFFFFFF))
            codes = tile[block * group : (block + 1) * group]
            if peak_bits >= _INFINITY:
                meta[at + block] = _POISON
                for k in range(group):
                    codes[k] = 0
                continue
            scratch_bits[0] = peak_bits
            peak = scratch[0]
            scratch_bits[0] = peak_bits & _INFINITY
            unit = max(scratch[0], _LEAST)
            top = peak / unit
            for k in range(group):
                scaled[k] = scaled[k] / unit
                turned[k] = scaled[k] * signs[k]
            _rotate(turned, group)
            for k in range(group):
                work[k] = turned[k] * turned[k]
            square = _tree_sum(work, group)
            straight = (not negative) and top * top * threshold <= square
            if straight:
                scale = top * even_share * unit
                rounded = np.int32(0xFFFF)
            else:
                deviation = np.sqrt(square * share)
                inverse = one / deviation if deviation > zero else zero
                for k in range(group):
                    codes[k] = 0
                for border in borders:
                    for k in range(group):
                        codes[k] += np.uint16(turned[k] * inverse >= border)
                for k in range(group):
                    work[k] = turned[k] * levels[codes[k]]
                along = _tree_sum(work, group)
                for k in range(group):
                    level = levels[codes[k]]
                    work[k] = level * level
                norm = _tree_sum(work, group)
                scale = max((along / norm) * share, zero) * unit
                rounded = np.int32(0x8000)
            scratch[0] = scale
            scale_bits = min((scratch_bits[0] + rounded) >> np.int32(16), np.int32(0x7F7F))
            if straight:
                scratch_bits[0] = scale_bits << np.int32(16)
                step = scratch[0]
                reciprocal = unit / step if step >= _LEAST else zero
                for k in range(group):
                    grid = np.rint(scaled[k] * reciprocal)
                    codes[k] = np.uint16(np.int32(min(max(grid, zero), top_code)))
                scale_bits -= np.int32(0x8000)
            meta[at + block] = np.int16(scale_bits)
        _pack_tile(tile, count * group, bits, out, total, at * group)


@_compiled
def _hadamard_decode(meta: Any, packed: Any, levels: Any, signs: Any, out: Any, start: int, stop: int) -> None:
    group = signs.size
    bits = 0
    while (1 << bits) < levels.size:
        bits += 1
    total = meta.size * group
    tile = np.empty(8 * group + 8, np.uint16)
    row = np.empty(group, np.float32)
    scratch = np.empty(1, np.float32)
    scratch_bits = scratch.view(np.int32)
    for at in range(start, stop, 8):
        count = min(8, stop - at)
        _unpack_tile(packed, count * group, bits, tile, total, at * group)
        for block in range(count):
            first = (at + block) * group
            n = min(group, out.size - first)
            codes = tile[block * group : (block + 1) * group]
            scratch_bits[0] = (np.int32(meta[at + block]) & np.int32(0x7FFF)) << np.int32(16)
            scale = scratch[0]
            if scale != scale:
                for k in range(n):
                    out[first + k] = scale
            elif meta[at + block] < 0:
                for k in range(n):
                    out[first + k] = min(np.float32(codes[k]) * scale, _MOST)
            else:
                scratch_bits[0] &= _INFINITY
                unit = max(scratch[0], _LEAST)
                share = scale / unit
                for k in range(group):
                    row[k] = levels[codes[k]] * share
                _rotate(row, group)
                for k in range(n):
                    out[first + k] = min(max(row[k] * signs[k] * unit, -_MOST), _MOST)


# -- from tensors to arrays ----------------------------------------------------------------------------------------


def blocks_encode(x: Tensor, bits: int, group: int, seed: int | None) -> tuple[Tensor, Tensor]:
    """See ``reference.blocks_encode``."""
    meta = torch.empty((-(-x.numel() // group), 2), dtype=torch.int16)
    out = torch.empty(packed_size(x.numel(), bits), dtype=torch.uint8)
    given, heads, target = x.numpy(), meta.numpy(), out.numpy()
    view, dice = given.view(np.int32), -1 if seed is None else seed
    spread(x.numel(), lcm(group, 8), lambda a, b: _encode(given, bits, group, dice, view, heads, target, a, b))
    return meta, out


def blocks_decode(meta: Tensor, packed: Tensor, count: int, bits: int, group: int) -> Tensor:
    """See ``reference.blocks_decode``."""
    out = torch.empty(count)
    heads, given, target = meta.numpy(), packed.numpy(), out.numpy()
    spread(count, lcm(group, 8), lambda a, b: _decode(heads, given, bits, group, target, a, b))
    return out


@cache
def _signs(group: int) -> Any:
    return reference.signs(group).numpy()


def hadamard_encode(x: Tensor, levels: Tensor, borders: Tensor, group: int, plain: float) -> tuple[Tensor, Tensor]:
    """See ``reference.hadamard_encode``."""
    bits = int(levels.numel()).bit_length() - 1
    blocks = -(-x.numel() // group)
    meta = torch.empty(blocks, dtype=torch.int16)
    out = torch.empty(packed_size(blocks * group, bits), dtype=torch.uint8)
    given, table, edges, heads, target = x.numpy(), levels.numpy(), borders.numpy(), meta.numpy(), out.numpy()
    turn = _signs(group)

    def work(a: int, b: int) -> None:
        _hadamard_encode(given, table, edges, turn, plain, heads, target, a // group, -(-b // group))

    spread(x.numel(), 8 * group, work)
    return meta, out


def hadamard_decode(scales: Tensor, packed: Tensor, levels: Tensor, count: int, group: int) -> Tensor:
    """See ``reference.hadamard_decode``."""
    out = torch.empty(count)
    heads, given, table, target = scales.numpy(), packed.numpy(), levels.numpy(), out.numpy()
    turn = _signs(group)

    def work(a: int, b: int) -> None:
        _hadamard_decode(heads, given, table, turn, target, a // group, -(-b // group))

    spread(count, 8 * group, work)
    return out
