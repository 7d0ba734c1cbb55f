"""The kernels for rotated blocks on the CPU; same functions and same bytes as ``reference_blocks``."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinpipe.kernels import reference_blocks
from thinpipe.kernels.cpu import _INFINITY, _compiled, _pack_tile, _unpack_tile
from thinpipe.kernels.cpu_blocks import _LEAST, _MOST, _POISON, _span
from thinpipe.kernels.planes import packed_size
from thinpipe.kernels.threads import spread

_ROTATED = np.int16(reference_blocks.ROTATED)


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
    return _tree_sum(work, values.size)


@_compiled
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
            for k in range(group):
                values[k] = x[min(first + k, x.size - 1)]
            codes = tile[block * group : (block + 1) * group]
            step_bits, multiple = _span(view, 0, group, bits, scratch)
            meta[at + block, 0] = np.int16(step_bits)
            meta[at + block, 1] = np.int16(multiple)
            if step_bits == _POISON or step_bits == 0:
                for k in range(group):
                    codes[k] = 0
                continue
            peak_bits = np.int32(0)
            for k in range(group):
                peak_bits = max(peak_bits, view[k] & np.int32(0x7FFFFFFF))
            scratch_bits[0] = step_bits << np.int32(16)
            scratch_bits[1] = peak_bits & _INFINITY
            unit = max(scratch[1], _LEAST)
            even_error = _even_codes(values, scratch[0], multiple, unit, top, codes, work)
            for k in range(group):
                turned[k] = values[k] / unit * signs[k]
            _rotate(turned, group)
            for k in range(group):
                work[k] = turned[k] * turned[k]
            square = _tree_sum(work, group)
            deviation = np.sqrt(square * share)
            inverse = one / deviation if deviation > zero else zero
            for k in range(group):
                places[k] = 0
            for border in borders:
                for k in range(group):
                    places[k] += np.uint16(turned[k] * inverse >= border)
            for k in range(group):
                work[k] = turned[k] * levels[places[k]]
            along = _tree_sum(work, group)
            for k in range(group):
                level = levels[places[k]]
                work[k] = level * level
            norm = _tree_sum(work, group)
            scratch[0] = max(along / norm, zero) * share * unit
            scale_bits = min((scratch_bits[0] + np.int32(0x8000)) >> np.int32(16), np.int32(0x7F7F))
            scratch_bits[0] = scale_bits << np.int32(16)
            scale = scratch[0] / unit * np.float32(group)
            if (square - scale * (along * np.float32(2) - scale * norm)) * share < even_error:
                meta[at + block, 0] = np.int16(scale_bits)
                meta[at + block, 1] = _ROTATED
                for k in range(group):
                    codes[k] = places[k]
        _pack_tile(tile, count * group, bits, out, meta.shape[0] * group, at * group)


@_compiled
def _decode(meta: Any, packed: Any, levels: Any, signs: Any, bits: int, out: Any, start: int, stop: int) -> None:
    group = signs.size
    tile = np.empty(8 * group + 8, np.uint16)
    row = np.empty(group, np.float32)
    scratch = np.empty(1, np.float32)
    scratch_bits = scratch.view(np.int32)
    for at in range(start, stop, 8):
        count = min(8, stop - at)
        _unpack_tile(packed, count * group, bits, tile, meta.shape[0] * group, at * group)
        for block in range(count):
            first = (at + block) * group
            n = min(group, out.size - first)
            codes = tile[block * group : (block + 1) * group]
            scratch_bits[0] = np.int32(meta[at + block, 0]) << np.int32(16)
            scale = scratch[0]
            if scale != scale:
                for k in range(n):
                    out[first + k] = scale
            elif meta[at + block, 1] == _ROTATED:
                scratch_bits[0] &= _INFINITY
                unit = max(scratch[0], _LEAST)
                share = scale / unit
                for k in range(group):
                    row[k] = levels[codes[k]] * share
                _rotate(row, group)
                for k in range(n):
                    out[first + k] = min(max(row[k] * signs[k] * unit, -_MOST), _MOST)
            else:
                half = scale * np.float32(0.5)
                base = np.float32(meta[at + block, 1]) * (half * np.float32(1.0 / 16))
                for k in range(n):
                    value = (base + np.float32(codes[k]) * half) * np.float32(2)
                    out[first + k] = min(max(value, -_MOST), _MOST)


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
