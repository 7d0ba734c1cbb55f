"""The kernels for waves on the CPU; same functions and same bytes as ``reference_waves``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinpipe.kernels.cpu_tiles import TILE, compiled
from thinpipe.kernels.planes import packed_size
from thinpipe.kernels.threads import spread

_LANES = np.uint64(0x0101010101010101)
"""The lowest bit of each of eight bytes."""
_GATHER = np.uint64(0x0102040810204080)
"""Multiplied by it, the lowest bits of eight bytes are the highest byte, the first one's in its lowest bit."""
_SCATTER = np.uint64(0x8040201008040201)
"""Multiplied by it, a byte's bits are in eight bytes, each in another place of its own."""
_FEW = 8
"""So many cells, or fewer, are counted; of more it is looked up nearly which."""
_LOWEST, _FINENESS, _BINS = 120 << 23, 17, 11 << 6
"""Bins of 64 to an octave, by the bits of a number: from 1/128, before which there is no edge, up to 16, after which
there is none either. No bin has two edges."""


@compiled
def _counted(length: Any, half: int, edges: Any, cell: Any) -> None:
    """Counts, for each number, the cells before its own."""
    cell[:] = 0
    for k in range(1, half):
        edge = edges[half + k]
        for t in range(length.size):
            cell[t] += np.uint8(length[t] >= edge)


@compiled
def _binned(half: int, edges: Any, bins: Any, own: Any) -> None:
    """Finds for each bin the cell that it begins in, and the edges of all cells, with one more that nothing reaches."""
    # One by one: an assignment of an array brings an error message with it, which takes a second to compile.
    for k in range(half):
        own[k] = edges[half + k]
    own[half] = np.inf
    begins = np.empty(1, np.float32)
    found = 0
    for k in range(_BINS):
        begins.view(np.int32)[0] = _LOWEST + (k << _FINENESS)
        while begins[0] >= own[found + 1]:
            found += 1
        bins[k] = found


@compiled
def _looked_up(length: Any, bins: Any, own: Any, cell: Any) -> None:
    """Finds the same as ``_counted``."""
    bits = length.view(np.int32)
    for t in range(length.size):
        near = bins[min(max((bits[t] - _LOWEST) >> _FINENESS, 0), _BINS - 1)]
        cell[t] = np.uint8(near + (length[t] >= own[near + 1]))


@compiled
def _encode(
    rows: Any, gains: Any, factors: Any, widths: Any, firsts: Any, edges: Any, out: Any, start: int, stop: int
) -> None:
    """Encodes columns start to stop of all rows, which begin at a multiple of 8.

    Where the number of all columns is one, too, rows begin with a byte, and parts of them can be encoded at once. Else
    they are encoded whole, one after the other, into zeros: the end of one and the beginning of the next share a byte.
    """
    count = rows.shape[1]
    length = np.empty(TILE, np.float32)
    below = np.empty(TILE, np.bool_)
    cell = np.empty(TILE, np.uint8)
    eights = cell.view(np.uint64)
    bins, own, binned = np.empty(_BINS, np.int32), np.empty(129, np.float32), 0
    zero, most = np.float32(0), np.float32(np.finfo(np.float32).max)
    for row in range(widths.size):
        half = 1 << (widths[row] - 1)
        top = np.uint8(half - 1)
        gain = gains[row]
        if half > _FEW and half != binned:
            _binned(half, edges, bins, own)
            binned = half
        for at in range(start, stop, TILE):
            numbers = rows[row, at : min(at + TILE, stop)]
            factor = factors[at : min(at + TILE, stop)]
            for t in range(numbers.size):
                number = numbers[t] * gain * factor[t]
                number = number if abs(number) <= most else zero
                length[t] = abs(number)
                below[t] = number < zero
            if half > _FEW:
                _looked_up(length[: numbers.size], bins, own, cell[: numbers.size])
            else:
                _counted(length[: numbers.size], half, edges, cell[: numbers.size])
            for t in range(numbers.size):
                cell[t] = np.uint8(top - cell[t]) if below[t] else np.uint8(half + cell[t])
            cell[numbers.size : numbers.size + (-numbers.size % 8)] = 0
            for place in range(widths[row]):
                first = (firsts[row] + place) * count + at
                target = out[first // 8 :]
                if first % 8 == 0:
                    for k in range((numbers.size + 7) // 8):
                        lanes = (eights[k] >> np.uint64(place)) & _LANES
                        target[k] |= np.uint8((lanes * _GATHER) >> np.uint64(56))
                else:
                    for k in range((numbers.size + 7) // 8):
                        lanes = (eights[k] >> np.uint64(place)) & _LANES
                        both = np.uint16((lanes * _GATHER) >> np.uint64(56)) << np.uint16(first % 8)
                        target[k] |= np.uint8(both)
                        if both > 255:
                            target[k + 1] |= np.uint8(both >> np.uint16(8))


@compiled
def _decode(packed: Any, scales: Any, widths: Any, firsts: Any, levels: Any, out: Any, start: int, stop: int) -> None:
    """Decodes columns start to stop of all rows; the inverse of ``_encode``. One more byte is there than is needed."""
    count = out.shape[1]
    codes = np.empty(TILE, np.uint8)
    eights = codes.view(np.uint64)
    table = np.empty(256, np.float32)
    for row in range(widths.size):
        half = 1 << (widths[row] - 1)
        for cell in range(half):
            level = levels[half + cell] * scales[row]
            table[half + cell] = level
            table[half - 1 - cell] = -level
        for at in range(start, stop, TILE):
            target = out[row, at : min(at + TILE, stop)]
            codes[:] = 0
            for place in range(widths[row]):
                first = (firsts[row] + place) * count + at
                source = packed[first // 8 :]
                shift = np.uint16(first % 8)
                for k in range((target.size + 7) // 8):
                    both = np.uint16(source[k]) | (np.uint16(source[k + 1]) << np.uint16(8))
                    # Each of eight copies of the byte keeps one bit, which a carry then brings to the top.
                    lanes = (np.uint64(np.uint8(both >> shift)) * _LANES) & _SCATTER
                    lanes = ((lanes + np.uint64(0x7F7F7F7F7F7F7F7F)) >> np.uint64(7)) & _LANES
                    eights[k] |= lanes << np.uint64(place)
            for t in range(target.size):
                target[t] = table[codes[t]]


def waves_encode(rows: Tensor, gains: Tensor, factors: Tensor, widths: Tensor, edges: Tensor, total: int) -> Tensor:
    """See ``reference_waves.waves_encode``."""
    count = rows.shape[1]
    out = torch.zeros(packed_size(total * count, 1), dtype=torch.uint8)
    inputs = (rows.contiguous(), gains, factors, widths)
    arrays = [*(each.numpy() for each in inputs), _firsts(widths), edges.numpy(), out.numpy()]
    _by_columns(len(widths), count, lambda start, stop: _encode(*arrays, start, stop))
    return out


def waves_decode(packed: Tensor, scales: Tensor, widths: Tensor, levels: Tensor, count: int) -> Tensor:
    """See ``reference_waves.waves_decode``."""
    out = torch.empty(len(widths), count)
    arrays = [
        torch.cat([packed, packed.new_zeros(1)]).numpy(),
        scales.numpy(),
        widths.numpy(),
        _firsts(widths),
        levels.numpy(),
        out.numpy(),
    ]
    _by_columns(len(widths), count, lambda start, stop: _decode(*arrays, start, stop))
    return out


def _by_columns(rows: int, count: int, work: Callable[[int, int], None]) -> None:
    """Spreads columns over cores, eight at a time, where rows share no byte."""
    if count % 8:
        work(0, count)
    else:
        spread(rows * count, 8 * rows, lambda start, stop: work(start // rows, stop // rows))


def _firsts(widths: Tensor) -> Any:
    return (widths.cumsum(0) - widths).numpy()
