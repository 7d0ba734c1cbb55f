"""The kernels in plain torch: slow, readable, and what the others must equal byte for byte.

Floats are float32, or float64 where the tensor is. Whatever is summed is an integer, so that the order does not matter;
everything else is rounded once for each operation, and nothing may be fused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thinpipe.kernels.planes import pack, unpack

BINS = 1 << 16
"""Of a histogram."""


def extent(x: Tensor) -> Tensor:
    """Finds the least and the greatest value; both NaN if any value is not finite."""
    ends = torch.stack(torch.aminmax(x)) + 0.0  # -0 becomes 0
    return torch.where(torch.isfinite(ends).all(), ends, torch.nan)


def grids(x: Tensor, borders: Tensor, levels: int) -> Tensor:
    """Lays an even grid over each bucket of values, from the bucket's least to its greatest.

    Args:
        x: flat.
        borders: where all buckets but the first begin, ascending, each a value of ``x``; none for one bucket of all.
        levels: the steps of a grid.

    Returns:
        Four rows, a column a bucket: see ``grids_between``.
    """
    low, high = extent(x).unbind()
    below = [torch.where(x < border, x, -torch.inf).amax() for border in borders]
    lows = torch.cat([low.view(1), borders])
    # A bucket of which nothing is left, since the next begins where it does, is its border alone.
    return grids_between(lows, torch.maximum(torch.stack([*below, high]) + 0.0, lows), levels)


def grids_between(lows: Tensor, highs: Tensor, levels: int) -> Tensor:
    """Lays even grids between known ends, those of a finite tensor if the first and the last are.

    ::

        low    least value
        high   greatest value
        step   (high - low) / levels; 0 if they are equal
        scale  2 / step: times half a value's distance from low it is the value's place on the grid; 0 if the step is

    Returns:
        Those four as rows; all NaN if the tensor is not finite.
    """
    most = torch.finfo(lows.dtype).max
    low, high = lows.double(), highs.double()
    # A finer grid than twice the least reciprocal has no finite scale. Halves cannot overflow where a difference can.
    # Divided by a tensor: by a number, CUDA multiplies with its reciprocal, and rounds twice.
    wide = ((high * 0.5 - low * 0.5) / low.new_full((), levels) * 2).clamp(2 / most, most)
    steps = torch.where(high == low, 0.0, wide).to(lows.dtype)
    scales = torch.where(steps > 0, (2.0 / steps.double()).clamp(max=most), 0.0).to(lows.dtype)
    rows = torch.stack([lows, highs, steps, scales])
    return torch.where(torch.isfinite(lows[0]) & torch.isfinite(highs[-1]), rows, torch.nan)


def affine(x: Tensor, low: Tensor, scale: Tensor, bits: int, seed: int | None) -> Tensor:
    """Quantizes to an even grid and packs.

    Args:
        x: flat.
        low: where the grid begins; NaN gives codes of 0.
        scale: twice the reciprocal of the grid's step, 0 for a grid of one value.
        bits: of a code.
        seed: of the dice of stochastic rounding; None rounds to the nearest, a tie to the even code.
    """
    # Halves are exact and cannot overflow, where the difference of the values themselves could.
    grid = (x * 0.5 - low * 0.5) * scale
    return pack(rounded(grid, bits, seed), bits)


def rounded(grid: Tensor, bits: int, seed: int | None) -> Tensor:
    """Rounds places on a grid to codes; the dice of an element depend on the seed and its index alone."""
    near = torch.round(grid) if seed is None else torch.floor(grid + dice(seed, grid))
    return torch.nan_to_num(near, nan=0.0).clamp(0, 2**bits - 1).to(torch.int32)


def dice(seed: int, like: Tensor) -> Tensor:
    """Throws a die for each element: numbers from 0 to 1 - 2**-16, by a hash of the seed and the element's index."""
    index = torch.arange(like.numel(), device=like.device, dtype=torch.int64)
    numbers: Tensor = hashed(index, seed) >> 16
    return numbers.to(like.dtype) * 2.0**-16


def hashed(index: Any, seed: int) -> Any:
    """Hashes 32-bit integers, held in 64: a tensor's or an array's."""
    mask = 0xFFFFFFFF
    h = ((index ^ seed) * 0x9E3779B1) & mask
    h = ((h ^ (h >> 15)) * 0x85EBCA77) & mask
    h = ((h ^ (h >> 13)) * 0xC2B2AE3D) & mask
    return h ^ (h >> 16)


def lookup(packed: Tensor, table: Tensor, count: int, bits: int) -> Tensor:
    """Unpacks codes and replaces each by its value in the table."""
    return table[unpack(packed, count, bits).long()]


def histogram(x: Tensor) -> Tensor:
    """Counts values by the upper half of a 32-bit key that orders as they do; what is next to 0 is in the middle."""
    bits = x.view(torch.int32)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return torch.bincount((keys >> 16) + BINS // 2, minlength=BINS)


def order_statistics(x: Tensor, ranks: list[int]) -> Tensor:
    """Finds the values at ranks of the sorted tensor, exactly."""
    return torch.sort(x).values[torch.tensor(ranks, device=x.device)] + 0.0


def buckets(x: Tensor, lows: Tensor, scales: Tensor, value_bits: int, split_bits: int) -> Tensor:
    """Quantizes each value on the grid of its bucket, the last one that begins at or below it, and packs.

    Args:
        x: flat.
        lows: where each bucket begins, ascending; NaN gives codes of 0.
        scales: twice the reciprocal of each bucket's step, 0 for a bucket of one value.
        value_bits: the low bits of a code, the place in the bucket.
        split_bits: the high bits of a code, the bucket.
    """
    bucket = torch.searchsorted(lows[1:].contiguous(), x, right=True)
    bucket = torch.where(lows[0].isnan(), 0, bucket)
    grid = (x * 0.5 - lows[bucket] * 0.5) * scales[bucket]
    codes = rounded(grid, value_bits, None)
    return pack(codes | (bucket.to(torch.int32) << value_bits), value_bits + split_bits)


def nearest(x: Tensor, borders: Tensor, bits: int) -> Tensor:
    """Codes each value by the number of borders at or below it, and packs; NaN gets the last code."""
    return pack(torch.searchsorted(borders, x, right=True), bits)


def turned(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Transposes each of a row of matrices, into another type of floats; what that cannot hold becomes its greatest."""
    most = torch.finfo(dtype).max
    bounded = x.clamp(-most, most) if most < torch.finfo(x.dtype).max else x
    return bounded.transpose(1, 2).to(dtype).contiguous()
