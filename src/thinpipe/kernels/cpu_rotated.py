"""The kernels for rotated blocks on the CPU; same functions and same bytes as ``reference_blocks``."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinpipe.kernels import reference_blocks
from thinpipe.kernels.cpu_blocks import LEAST, MOST, POISON, span_of, values_of
from thinpipe.kernels.cpu_tiles import INFINITY, compiled, pack_tile, unpack_tile
from thinpipe.kernels.planes import packed_size
from thinpipe.kernels.threads import spread

_ROTATED = np.int16(reference_blocks.ROTATED)


@compiled
def _rotate_eight(row: Any) -> None:
    """Does the three nearest butterflies of eight values in registers: loops of one, two and four gain nothing."""
    a0, a1, a2, a3 = row[0] + row[1], row[0] - row[1], row[2] + row[3], row[2] - row[3]
    a4, a5, a6, a7 = row[4] + row[5], row[4] - row[5], row[6] + row[7], row[6] - row[7]
    b0, b1, b2, b3 = a0 + a2, a1 + a3, a0 - a2, a1 - a3
    b4, b5, b6, b7 = a4 + a6, a5 + a7, a4 - a6, a5 - a7
    row[0], row[1], row[2], row[3] = b0 + b4, b1 + b5, b2 + b6, b3 + b7
    row[4], row[5], row[6], row[7] = b0 - b4, b1 - b5, b2 - b6, b3 - b7


@compiled
def _rotate(row: Any) -> None:
    span = 1
    if row.size >= 8:
        for first in range(0, row.size, 8):
            _rotate_eight(row[first : first + 8])
        span = 8
    while span < row.size:
        for first in range(0, row.size, 2 * span):
            low = row[first : first + span]
            high = row[first + span : first + 2 * span]
            for k in range(span):
                a = low[k]
                b = high[k]
                low[k] = a + b
                high[k] = a - b
        span *= 2


@compiled
def _tree_sum(row: Any) -> Any:
    half = row.size // 2
    while half:
        low = row[:half]
        high = row[half : 2 * half]
        for k in range(half):
            low[k] += high[k]
        half //= 2
    return row[0]


@compiled
def _even_codes(values: Any, step: Any, multiple: Any, unit: Any, top: Any, codes: Any, work: Any) -> Any:
    """Codes a block on its even grid; returns the squared error, in units."""
    half = np.float32(0.5)
    zero = np.float32(0)
    half_step = step * half
    base = multiple * (half_step * np.float32(1.0 / 16))
    scale = np.float32(1) / step * np.float32(2) if step > zero else zero
    double = np.float32(2) / unit
    for k in range(values.size):
        grid = np.rint((values[k] * half - base) * scale)
        codes[k] = np.uint16(np.int32(min(max(grid, zero), top)))
        rest = values[k] / unit - (base + np.float32(codes[k]) * half_step) * double
        work[k] = rest * rest
    return _tree_sum(work)


@compiled
def _encode(
    x: Any, levels: Any, borders: Any, signs: Any, bits: int, meta: Any, out: Any, start: int, stop: int
) -> None:
    """Encodes blocks start to stop, in tiles of 8 blocks."""
    group = signs.size
    tile = np.empty(8 * group + 8, np.uint16)
    values = np.empty(group, np.float32)
    view = values.view(np.int32)
    turned = np.empty(group, np.float32)
    places = np.empty(group, np.uint16)
    work = np.empty(group, np.float32)
    scratch = np.empty(2, np.float32)
    scratch_bits = scratch.view(np.int32)
    zero = np.float32(0)
    one = np.float32(1)
    share = np.float32(1.0 / group)
    top = np.float32((1 << bits) - 1)
    for at in range(start, stop, 8):
        count = min(8, stop - at)
        for block in range(count):
            first = (at + block) * group
            given = x[first : min(first + group, x.size)]
            values[: given.size] = given
            values[given.size :] = given[-1]
            codes = tile[block * group : (block + 1) * group]
            step_bits, multiple = span_of(view, 0, group, bits, scratch)
            meta[at + block, 0] = np.int16(step_bits)
            meta[at + block, 1] = np.int16(multiple)
            if step_bits == POISON or step_bits == 0:
                codes[:] = 0
                continue
            peak_bits = np.int32(0)
            for k in range(group):
                peak_bits = max(peak_bits, view[k] & np.int32(0x7FFFFFFF))
            scratch_bits[0] = step_bits << np.int32(16)
            scratch_bits[1] = peak_bits & INFINITY
            unit = max(scratch[1], LEAST)
            even_error = _even_codes(values, scratch[0], multiple, unit, top, codes, work)
            for k in range(group):
                turned[k] = values[k] / unit * signs[k]
            _rotate(turned)
            for k in range(group):
                work[k] = turned[k] * turned[k]
            square = _tree_sum(work)
            deviation = np.sqrt(square * share)
            inverse = one / deviation if deviation > zero else zero
            places[:] = 0
            for k in range(group):
                work[k] = turned[k] * inverse
            for border in borders:
                for k in range(group):
                    places[k] += np.uint16(work[k] >= border)
            for k in range(group):
                work[k] = turned[k] * levels[places[k]]
            along = _tree_sum(work)
            for k in range(group):
                level = levels[places[k]]
                work[k] = level * level
            norm = _tree_sum(work)
            scratch[0] = max(along / norm, zero) * share * unit
            scale_bits = min((scratch_bits[0] + np.int32(0x8000)) >> np.int32(16), np.int32(0x7F7F))
            scratch_bits[0] = scale_bits << np.int32(16)
            scale = scratch[0] / unit * np.float32(group)
            if (square - scale * (along * np.float32(2) - scale * norm)) * share < even_error:
                meta[at + block, 0] = np.int16(scale_bits)
                meta[at + block, 1] = _ROTATED
                codes[:] = places
        pack_tile(tile, count * group, bits, out, meta.shape[0] * group, at * group)


@compiled
def _decode(meta: Any, packed: Any, levels: Any, signs: Any, bits: int, out: Any, start: int, stop: int) -> None:
    group = signs.size
    tile = np.empty(8 * group + 8, np.uint16)
    row = np.empty(group, np.float32)
    scratch = np.empty(1, np.float32)
    scratch_bits = scratch.view(np.int32)
    for at in range(start, stop, 8):
        count = min(8, stop - at)
        unpack_tile(packed, count * group, bits, tile, meta.shape[0] * group, at * group)
        for block in range(count):
            first = (at + block) * group
            codes = tile[block * group : (block + 1) * group]
            scratch_bits[0] = np.int32(meta[at + block, 0]) << np.int32(16)
            scale = scratch[0]
            target = out[first : min(first + group, out.size)]
            if meta[at + block, 1] == _ROTATED and scale == scale:
                scratch_bits[0] &= INFINITY
                unit = max(scratch[0], LEAST)
                share = scale / unit
                for k in range(group):
                    row[k] = levels[codes[k]] * share
                _rotate(row)
                for k in range(target.size):
                    target[k] = min(max(row[k] * signs[k] * unit, -MOST), MOST)
            else:
                half = scale * np.float32(0.5)
                base = np.float32(meta[at + block, 1]) * (half * np.float32(1.0 / 16))
                values_of(codes, base, half, target)


@cache
def _signs(group: int) -> Any:
    return reference_blocks.signs(group).numpy()


def hadamard_encode(x: Tensor, levels: Tensor, borders: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """See ``reference_blocks.hadamard_encode``."""
    bits = int(levels.numel()).bit_length() - 1
    blocks = -(-x.numel() // group)
    meta = torch.empty((blocks, 2), dtype=torch.int16)
    out = torch.empty(packed_size(blocks * group, bits), dtype=torch.uint8)
    given, table, edges, heads, target = x.numpy(), levels.numpy(), borders.numpy(), meta.numpy(), out.numpy()
    turn = _signs(group)

    def work(a: int, b: int) -> None:
        _encode(given, table, edges, turn, bits, heads, target, a // group, -(-b // group))

    spread(x.numel(), 8 * group, work)
    return meta, out


def hadamard_decode(meta: Tensor, packed: Tensor, levels: Tensor, count: int, group: int) -> Tensor:
    """See ``reference_blocks.hadamard_decode``."""
    bits = int(levels.numel()).bit_length() - 1
    out = torch.empty(count)
    heads, given, table, target = meta.numpy(), packed.numpy(), levels.numpy(), out.numpy()
    turn = _signs(group)

    def work(a: int, b: int) -> None:
        _decode(heads, given, table, turn, bits, target, a // group, -(-b // group))

    spread(count, 8 * group, work)
    return out
