"""The kernels for rotated blocks on the CPU; same functions and same bytes as ``reference_blocks``."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinpipe.kernels import reference_blocks
from thinpipe.kernels.cpu_blocks import MOST, POISON, span_of, values_of
from thinpipe.kernels.cpu_tiles import INFINITY, compiled, pack_tile, unpack_tile
from thinpipe.kernels.planes import packed_size
from thinpipe.kernels.threads import spread

_ROTATED = np.int16(reference_blocks.ROTATED)
_LEAST_PEAK = np.float32(reference_blocks.LEAST_PEAK)
_UNIT = float(reference_blocks.LEVEL_UNIT)


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
def _even_codes(values: Any, step: Any, multiple: Any, top: Any, codes: Any) -> Any:
    """Codes a block on its even grid; returns the squared error, in 512ths of a step."""
    half = np.float32(0.5)
    zero = np.float32(0)
    base = multiple * (step * half * np.float32(1.0 / 16))
    scale = np.float32(1) / step * np.float32(2)
    total = np.int32(0)
    for k in range(values.size):
        place = min(max((values[k] * half - base) * scale, zero), top)
        near = np.rint(place)
        codes[k] = np.uint16(np.int32(near))
        rest = np.int32(np.rint((place - near) * np.float32(512)))
        total = np.int32(total + rest * rest)
    return np.float32(total)


@compiled
def _turn(values: Any, zoom: Any, signs: Any, low_bits: int, whole: Any, turned: Any) -> Any:
    """Rotates a block; returns its deviation, in 16ths of the block's size."""
    one = np.float32(1 << low_bits)
    square = np.int64(0)
    for start in range(0, values.size, 256):  # whose squares fit in 31 bits
        part = values[start : start + 256]
        target = whole[start : start + 256]
        turn = signs[start : start + 256]
        total = np.int32(0)
        for k in range(part.size):
            fixed = part[k] * zoom
            high = np.rint(fixed)
            low = np.rint((fixed - high) * one)
            number = np.int32(high)
            total = np.int32(total + number * number)
            target[k] = np.int32((high * one + low) * turn[k])
        square += np.int64(total)
    _rotate(whole)
    back = np.float32(1) / one
    for k in range(values.size):
        turned[k] = np.float32(whole[k]) * back
    return max(np.sqrt(np.float32(square)) * np.float32(16.0 / values.size), np.float32(1))


@compiled
def _number(turned: Any, inverse: Any, borders: Any, places: Any, numbers: Any) -> None:
    """Finds each value's level among those above 0, by its magnitude: by how many borders are at or below it."""
    numbers[:] = 0
    for k in range(turned.size):
        places[k] = abs(turned[k]) * inverse
    for border in borders:
        for k in range(turned.size):
            numbers[k] += np.int32(places[k] >= border)


@compiled
def _fit(places: Any, numbers: Any, levels: Any, shift: int) -> Any:
    """Sums what is left of places beyond their levels, squared; along the levels; and the levels squared."""
    error = np.int32(0)
    along = np.int32(0)
    norm = np.int32(0)
    fine = np.float32(1) / np.float32(1 << shift)
    for k in range(places.size):
        level = levels[numbers[k]]
        rest = np.int32(np.int32(np.rint(places[k] * fine)) - level)
        error = np.int32(error + rest * rest)
        along = np.int32(along + rest * level)
        norm = np.int32(norm + level * level)
    return error, along, norm


@compiled
def _encode(
    x: Any,
    levels: Any,
    borders: Any,
    signs: Any,
    low_bits: int,
    shift: int,
    bits: int,
    meta: Any,
    out: Any,
    start: int,
    stop: int,
) -> None:
    """Encodes blocks start to stop, in tiles of 8 blocks; ``levels`` and ``borders`` are those above 0."""
    group = signs.size
    tile = np.empty(8 * group + 8, np.uint16)
    values = np.empty(group, np.float32)
    view = values.view(np.int32)
    whole = np.empty(group, np.int32)
    turned = np.empty(group, np.float32)
    places = np.empty(group, np.float32)
    numbers = np.empty(group, np.int32)
    scratch = np.empty(2, np.float32)
    scratch_bits = scratch.view(np.int32)
    one = np.float32(1)
    top = np.float32((1 << bits) - 1)
    middle = np.int32(1 << (bits - 1))
    mask = np.int32((1 << bits) - 1)
    unit = np.float32(group * 4.0**shift * 512.0**2 / (_UNIT * 16.0) ** 2)
    for at in range(start, stop, 8):
        count = min(8, stop - at)
        for block in range(count):
            first = (at + block) * group
            given = x[first : min(first + group, x.size)]
            for k in range(given.size):  # as an assignment, it would take a second more to compile
                values[k] = given[k]
            values[given.size :] = given[-1]
            codes = tile[block * group : (block + 1) * group]
            step_bits, multiple = span_of(view, 0, group, bits, scratch)
            meta[at + block, 0] = np.int16(step_bits)
            meta[at + block, 1] = np.int16(multiple)
            if step_bits == POISON or step_bits == 0:
                codes[:] = 0
                continue
            scratch_bits[0] = step_bits << np.int32(16)
            step = scratch[0]
            even_sum = _even_codes(values, step, multiple, top, codes)
            peak_bits = np.int32(0)
            for k in range(group):
                peak_bits = max(peak_bits, view[k] & np.int32(0x7FFFFFFF))
            scratch_bits[1] = peak_bits & INFINITY
            if scratch[1] < _LEAST_PEAK:
                continue
            zoom = np.float32(1024) / scratch[1]
            root = _turn(values, zoom, signs, low_bits, whole, turned)
            _number(turned, np.float32(_UNIT * 16.0 / group) / root, borders, places, numbers)
            error, along, norm = _fit(places, numbers, levels, shift)
            ratio = np.float32(np.int32(along + norm)) / np.float32(norm)
            scratch[0] = ratio * (root * np.float32(0.0625)) * (one / zoom)
            scale_bits = min((scratch_bits[0] + np.int32(0x8000)) >> np.int32(16), np.int32(0x7F7F))
            scratch_bits[0] = scale_bits << np.int32(16)
            excess = one - scratch[0] * zoom * np.float32(16) / root
            turned_sum = np.float32(error) + excess * (np.float32(along) * np.float32(2) + excess * np.float32(norm))
            even_step = step * zoom
            if max(turned_sum, np.float32(0)) * (root * root) * unit < even_sum * (even_step * even_step):
                meta[at + block, 0] = np.int16(scale_bits)
                meta[at + block, 1] = _ROTATED
                for k in range(group):
                    below = whole[k] >> np.int32(31)
                    codes[k] = np.uint16(((middle + numbers[k]) ^ below) & mask)
        pack_tile(tile, count * group, bits, out, meta.shape[0] * group, at * group)


@compiled
def _decode(meta: Any, packed: Any, levels: Any, signs: Any, bits: int, out: Any, start: int, stop: int) -> None:
    group = signs.size
    tile = np.empty(8 * group + 8, np.uint16)
    row = np.empty(group, np.int32)
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
            if meta[at + block, 1] != _ROTATED:
                half = scale * np.float32(0.5)
                base = np.float32(meta[at + block, 1]) * (half * np.float32(1.0 / 16))
                values_of(codes, base, half, target)
            elif scale * np.float32(0) != np.float32(0):
                target[:] = np.float32(np.nan)
            else:
                for k in range(group):
                    row[k] = levels[codes[k]]
                _rotate(row)
                factor = scale * np.float32(0.5 / _UNIT)
                for k in range(target.size):
                    value = (np.float32(row[k]) * signs[k] * factor + np.float32(0)) * np.float32(2)
                    target[k] = min(max(value, -MOST), MOST)


@cache
def _signs(group: int) -> Any:
    return reference_blocks.signs(group).to(torch.float32).numpy()


def hadamard_encode(x: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """See ``reference_blocks.hadamard_encode``."""
    levels, borders = reference_blocks.tables(bits)
    blocks = -(-x.numel() // group)
    meta = torch.empty((blocks, 2), dtype=torch.int16)
    out = torch.empty(packed_size(blocks * group, bits), dtype=torch.uint8)
    given, heads, target = x.numpy(), meta.numpy(), out.numpy()
    low_bits, shift = reference_blocks.low_bits(group, bits), reference_blocks.fit_shift(group)
    table = (levels.numpy()[1 << (bits - 1) :] + (1 << shift >> 1)) >> shift
    edges, turn = borders.numpy()[1 << (bits - 1) :], _signs(group)

    def work(a: int, b: int) -> None:
        _encode(given, table, edges, turn, low_bits, shift, bits, heads, target, a // group, -(-b // group))

    spread(x.numel(), 8 * group, work)
    return meta, out


def hadamard_decode(meta: Tensor, packed: Tensor, count: int, bits: int, group: int) -> Tensor:
    """See ``reference_blocks.hadamard_decode``."""
    levels, _ = reference_blocks.tables(bits)
    out = torch.empty(count)
    heads, given, table, target = meta.numpy(), packed.numpy(), levels.numpy(), out.numpy()
    turn = _signs(group)

    def work(a: int, b: int) -> None:
        _decode(heads, given, table, turn, bits, target, a // group, -(-b // group))

    spread(count, 8 * group, work)
    return out
