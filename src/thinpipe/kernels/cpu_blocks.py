"""The kernels for blocks on the CPU; same functions and same bytes as ``reference_blocks``."""

from __future__ import annotations

from math import lcm
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinpipe.kernels.cpu_tiles import INFINITY, codes_of, compiled, key, pack_tile, unpack_tile
from thinpipe.kernels.planes import packed_size
from thinpipe.kernels.threads import spread

LEAST = np.float32(2.0**-126)
_SLACK = np.float32(1.0 / 2040.0)
MOST = np.float32(np.finfo(np.float32).max)
POISON = np.int16(0x7FC0)
_MINUS_INFINITY = np.int32(-0x00800000)


@compiled
def span_of(view: Any, start: int, size: int, bits: int, scratch: Any) -> Any:
    """Finds a block's step, as its bits, and its base, as a multiple of step / 16; NaN's bits if it is not finite.

    ``scratch`` is two floats that take bits for floats.
    """
    scratch_bits = scratch.view(np.int32)
    low_key = np.int32(0x7FFFFFFF)
    high_key = np.int32(-0x80000000)
    block = view[start : start + size]
    for k in range(block.size):
        ordered = key(block[k])
        low_key = min(low_key, ordered)
        high_key = max(high_key, ordered)
    if high_key >= INFINITY or low_key <= key(_MINUS_INFINITY):
        return np.int32(POISON), np.float32(0)
    scratch_bits[0] = key(low_key)
    scratch_bits[1] = key(high_key)
    low = scratch[0]
    high = scratch[1]
    half = np.float32(0.5)
    zero = np.float32(0)
    if low == zero and high == zero:
        return np.int32(0), zero
    factor = np.float32(2.0 / (((1 << bits) - 1) - 1.0 / 16))
    step = max((high * half - low * half) * factor, max(-low, high) * _SLACK)
    scratch[0] = max(step, LEAST)
    step_bits = min((scratch_bits[0] + np.int32(0xFFFF)) >> np.int32(16), np.int32(0x7F7F))
    scratch_bits[0] = step_bits << np.int32(16)
    return step_bits, np.floor(low * (np.float32(1) / scratch[0]) * np.float32(16))


@compiled
def _encode(x: Any, bits: int, group: int, seed: int, view: Any, meta: Any, out: Any, start: int, stop: int) -> None:
    """Encodes elements start to stop, in tiles of whole blocks whose codes fill whole bytes."""
    blocks = max(1, 1024 // group)
    if group % 8:
        blocks = (blocks + 7) // 8 * 8
    tile = np.empty(blocks * group + 8, np.uint16)
    scratch = np.empty(2, np.float32)
    scratch_bits = scratch.view(np.int32)
    half = np.float32(0.5)
    for at in range(start, stop, blocks * group):
        size = min(blocks * group, stop - at)
        for first in range(0, size, group):
            n = min(group, size - first)
            a = at + first
            step_bits, multiple = span_of(view, a, n, bits, scratch)
            meta[a // group, 0] = np.int16(step_bits)
            meta[a // group, 1] = np.int16(multiple)
            if step_bits == POISON or step_bits == 0:
                tile[first : first + n] = 0
                continue
            scratch_bits[0] = step_bits << np.int32(16)
            step = scratch[0]
            base = multiple * (step * np.float32(1.0 / 16) * half)
            scale = np.float32(1) / step * np.float32(2)
            codes_of(x[a : a + n], base, scale, bits, seed, a, tile[first : first + n])
        pack_tile(tile, size, bits, out, x.size, at)


@compiled
def values_of(codes: Any, half_base: Any, half_step: Any, out: Any) -> None:
    """Finds the values of codes on a grid; NaN if the step is."""
    if half_step != half_step:
        out[:] = half_step
        return
    for k in range(out.size):
        value = (half_base + np.float32(codes[k]) * half_step) * np.float32(2)
        out[k] = min(max(value, -MOST), MOST)


@compiled
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
        unpack_tile(packed, size, bits, tile, out.size, at)
        for first in range(0, size, group):
            n = min(group, size - first)
            number = (at + first) // group
            scratch_bits[0] = np.int32(meta[number, 0]) << np.int32(16)
            step = scratch[0]
            half = step * np.float32(0.5)
            base = np.float32(meta[number, 1]) * (half * sixteenth)
            values_of(tile[first : first + n], base, half, out[at + first : at + first + n])


# -- from tensors to arrays ----------------------------------------------------------------------------------------


def blocks_encode(x: Tensor, bits: int, group: int, seed: int | None) -> tuple[Tensor, Tensor]:
    """See ``reference_blocks.blocks_encode``."""
    meta = torch.empty((-(-x.numel() // group), 2), dtype=torch.int16)
    out = torch.empty(packed_size(x.numel(), bits), dtype=torch.uint8)
    given, heads, target = x.numpy(), meta.numpy(), out.numpy()
    view, dice = given.view(np.int32), -1 if seed is None else seed
    spread(x.numel(), lcm(group, 8), lambda a, b: _encode(given, bits, group, dice, view, heads, target, a, b))
    return meta, out


def blocks_decode(meta: Tensor, packed: Tensor, count: int, bits: int, group: int) -> Tensor:
    """See ``reference_blocks.blocks_decode``."""
    out = torch.empty(count)
    heads, given, target = meta.numpy(), packed.numpy(), out.numpy()
    spread(count, lcm(group, 8), lambda a, b: _decode(heads, given, bits, group, target, a, b))
    return out
