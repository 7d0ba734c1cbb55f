"""The kernels in plain torch: slow, readable, and what the others must equal byte for byte.

Floats are float32, or float64 where the tensor is. Every result is exact or rounded once, in an order that does not
depend on the device, so that a processor which fuses a multiplication with an addition gets the same bytes.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist

import torch
from torch import Tensor

from thinpipe.kernels.planes import pack, unpack

STEP_BITS = 16
"""A block's step is the upper half of a float32: its sign, its exponent and 7 bits."""

FRACTIONS = 16
"""A block's base is a multiple of this fraction of its step."""

BINS = 1 << 16
"""Of a histogram."""

_LEAST_STEP = 2.0**-126
_MOST_STEP = 0x7F7F
_POISON = 0x7FC0
_SLACK = 1.0 / 2040.0
_SIGNS_SEED = 0x9E3779B9


def extent(x: Tensor) -> Tensor:
    """Finds the least and the greatest value; both NaN if any value is not finite."""
    ends = torch.stack(torch.aminmax(x)) + 0.0  # -0 becomes 0
    return torch.where(torch.isfinite(ends).all(), ends, torch.nan)


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
    return pack(_rounded(grid, bits, seed, 0), bits)


def _rounded(grid: Tensor, bits: int, seed: int | None, first: int) -> Tensor:
    """Rounds positions on a grid to codes; the dice of element k depend on the seed and on first + k alone."""
    rounded = torch.round(grid) if seed is None else torch.floor(grid + dice(seed, first, grid.numel(), grid))
    return torch.nan_to_num(rounded, nan=0.0).clamp(0, 2**bits - 1).to(torch.int32)


def dice(seed: int, first: int, count: int, like: Tensor) -> Tensor:
    """Throws dice: numbers from 0 to 1 - 2**-16, by a hash of the seed and the element's index."""
    index = torch.arange(first, first + count, device=like.device, dtype=torch.int64)
    return (hashed(index, seed) >> 16).to(like.dtype) * 2.0**-16


def hashed(index: Tensor, seed: int) -> Tensor:
    """Hashes 32-bit integers, held in 64."""
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
    codes = _rounded(grid, value_bits, None, 0)
    return pack(codes | (bucket.to(torch.int32) << value_bits), value_bits + split_bits)


def nearest(x: Tensor, borders: Tensor, bits: int) -> Tensor:
    """Codes each value by the number of borders at or below it, and packs; NaN gets the last code."""
    return pack(torch.searchsorted(borders, x, right=True), bits)


# -- blocks --------------------------------------------------------------------------------------------------------


def blocks_encode(x: Tensor, bits: int, group: int, seed: int | None) -> tuple[Tensor, Tensor]:
    """Quantizes blocks of neighbours, each between its own least and greatest value.

    ::

        step  = (greatest - least) / (2**bits - 1 - 1/16), rounded up to 16 bits
        base  = least, rounded down to a multiple of step/16        so 0 stays 0 where it is the least
        code  = (x - base) / step, rounded

    Returns:
        Two 16-bit integers a block, the step's bits and the base's multiple, and the packed codes. A block with a
        value that is not finite has a NaN for its step.
    """
    rows = _in_rows(x, group)
    low, high = rows.amin(1), rows.amax(1)
    levels = 2**bits - 1
    factor = 2.0 / (levels - 1.0 / FRACTIONS)
    step = torch.maximum((high * 0.5 - low * 0.5) * factor, torch.maximum(-low, high) * _SLACK)
    step = torch.where((low != 0) | (high != 0), step.clamp(min=_LEAST_STEP), 0.0)  # and never -0
    step_bits = ((step.view(torch.int32) + 0xFFFF) >> STEP_BITS).clamp(max=_MOST_STEP)
    finite = torch.isfinite(low) & torch.isfinite(high)
    step_bits = torch.where(finite, step_bits, _POISON)
    step = (step_bits << STEP_BITS).view(torch.float32)
    reciprocal = torch.where(finite & (step > 0), 1.0 / step, 0.0)
    multiple = torch.where(finite, torch.floor(low * reciprocal * FRACTIONS), 0.0)
    # By halves: the base itself may lie below the least float.
    base = multiple * (torch.where(finite, step, 0.0) * (0.5 / FRACTIONS))
    grid = (rows * 0.5 - base[:, None]) * (reciprocal * 2.0)[:, None]
    grid = torch.where(finite[:, None], grid, 0.0)
    codes = _rounded(grid.reshape(-1)[: x.numel()], bits, seed, 0)
    meta = torch.stack([step_bits, multiple.to(torch.int32)], 1).to(torch.int16)
    return meta, pack(codes, bits)


def blocks_decode(meta: Tensor, packed: Tensor, count: int, bits: int, group: int) -> Tensor:
    """Finds the values again: ``base + step * code``, by halves, whose product is exact and cannot overflow."""
    step = (meta[:, 0].to(torch.int32) << STEP_BITS).view(torch.float32)
    half = step * 0.5
    base = meta[:, 1].to(torch.float32) * (half * (1.0 / FRACTIONS))
    codes = _in_rows(unpack(packed, count, bits).to(torch.float32), group)
    most = torch.finfo(torch.float32).max
    return ((base[:, None] + codes * half[:, None]) * 2.0).clamp(-most, most).reshape(-1)[:count]


def _in_rows(x: Tensor, group: int) -> Tensor:
    """Lays a flat tensor out in rows of a block each; the last row is filled up with its own last value."""
    short = -x.numel() % group
    return torch.cat([x, x[-1:].expand(short)]).view(-1, group) if short else x.view(-1, group)


# -- rotated blocks ------------------------------------------------------------------------------------------------


def signs(group: int) -> Tensor:
    """Draws the signs of the random rotation, the same for every block and everywhere."""
    return 1.0 - 2.0 * (hashed(torch.arange(group), _SIGNS_SEED) & 1).to(torch.float32)


def rotated(rows: Tensor) -> Tensor:
    """Applies the Hadamard transform to each row, not normalised, by butterflies from the nearest neighbours up."""
    count, group = rows.shape
    span = 1
    while span < group:
        pairs = rows.view(count, group // (2 * span), 2, span)
        rows = torch.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2).view(count, group)
        span *= 2
    return rows


def tree_sum(rows: Tensor) -> Tensor:
    """Sums each row by adding its second half to its first, again and again: one order for every kernel."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    return rows[:, 0]


def hadamard_encode(x: Tensor, levels: Tensor, borders: Tensor, group: int, plain: float) -> tuple[Tensor, Tensor]:
    """Quantizes blocks after a random rotation, which makes any block look Gaussian, to the levels of a Gaussian.

    A block without negative values, such as ReLU leaves, is not rotated where an even grid from 0 up errs less.

    Args:
        x: flat.
        levels: the best levels for a Gaussian of deviation 1, ascending; a power of two of them.
        borders: between the levels.
        group: the size of a block, a power of two.
        plain: the greatest share of the squared peak in the mean square at which an even grid errs less.

    Returns:
        One 16-bit integer a block, the upper half of its float32 scale, negative where the block is not rotated; and
        the packed codes.
    """
    bits = int(levels.numel()).bit_length() - 1
    count = x.numel()
    rows = torch.cat([x, x.new_zeros(-count % group)]).view(-1, group)
    peak = rows.abs().amax(1)
    finite = torch.isfinite(peak)
    # A power of two of the block's size: squares neither overflow nor vanish.
    unit = _power_below(torch.where(finite, peak, 0.0))
    scaled = torch.where(finite[:, None], rows / unit[:, None], 0.0)
    top = torch.where(finite, peak, 0.0) / unit
    turned = rotated(scaled * signs(group).to(x.device))
    square = tree_sum(turned * turned)  # group times the sum of squares
    straight = (rows.amin(1) >= 0) & (top * top * (plain * group * group) <= square)
    deviation = torch.sqrt(square * (1.0 / group))
    inverse = torch.where(deviation > 0, 1.0 / deviation, 0.0)
    codes = torch.searchsorted(borders, turned * inverse[:, None], right=True)
    chosen = levels[codes]
    along, norm = tree_sum(turned * chosen), tree_sum(chosen * chosen)
    # The scale that errs least; 1/group undoes the two transforms that are not normalised.
    turned_scale = (along / norm) * (1.0 / group)
    even_scale = top * (1.0 / (2**bits - 1))
    scale = torch.where(straight, even_scale, turned_scale).clamp(min=0) * unit
    rounded = torch.where(straight, 0xFFFF, 0x8000).to(torch.int32)  # an even grid must reach its peak
    scale_bits = ((scale.view(torch.int32) + rounded) >> STEP_BITS).clamp(max=_MOST_STEP)
    scale_bits = torch.where(finite, scale_bits, _POISON)
    step = (scale_bits << STEP_BITS).view(torch.float32)
    reciprocal = torch.where(finite & (step >= _LEAST_STEP), unit / step, 0.0)
    even = _rounded((scaled * reciprocal[:, None]).reshape(-1), bits, None, 0).view(rows.shape)
    codes = torch.where(straight[:, None], even, codes.to(torch.int32)) * finite[:, None]
    scale_bits = torch.where(straight & finite, scale_bits - 0x8000, scale_bits)
    return scale_bits.to(torch.int16), pack(codes.reshape(-1), bits)


def _power_below(x: Tensor) -> Tensor:
    """Finds the power of two at or below each value, at least the least normal one."""
    return (x.view(torch.int32) & 0x7F800000).view(torch.float32).clamp(min=_LEAST_STEP)


def hadamard_decode(scales: Tensor, packed: Tensor, levels: Tensor, count: int, group: int) -> Tensor:
    """Turns the blocks back."""
    bits = int(levels.numel()).bit_length() - 1
    rows = unpack(packed, scales.numel() * group, bits).view(-1, group)
    scale_bits = scales.to(torch.int32)
    straight = scale_bits < 0
    scale = ((scale_bits & 0x7FFF) << STEP_BITS).view(torch.float32)
    unit = _power_below(scale)
    turned = rotated(levels[rows.long()] * (scale / unit)[:, None]) * signs(group).to(packed.device) * unit[:, None]
    most = torch.finfo(torch.float32).max
    values = torch.where(straight[:, None], rows.to(torch.float32) * scale[:, None], turned)
    return values.clamp(-most, most).reshape(-1)[:count]


def gaussian_levels(bits: int) -> list[float]:
    """Finds the levels that quantize a Gaussian of deviation 1 with the least squared error (Lloyd and Max)."""
    count = 2**bits
    # Where they are when there are infinitely many; 256 of them hardly move from anywhere else in so few rounds.
    many = NormalDist(0, math.sqrt(3))
    half = [many.inv_cdf(0.5 + (k + 0.5) / count) for k in range(count // 2)]
    for _ in range(2000):
        levels = [-level for level in reversed(half)] + half
        edges = [-math.inf, *((a + b) / 2 for a, b in pairwise(levels)), math.inf]
        half = [_mean_between(a, b) for a, b in pairwise(edges)][count // 2 :]
    return [-level for level in reversed(half)] + half


def _mean_between(a: float, b: float) -> float:
    """Averages a Gaussian between two values."""
    weight = (math.erf(b / math.sqrt(2)) - math.erf(a / math.sqrt(2))) / 2
    density = [math.exp(-x * x / 2) / math.sqrt(2 * math.pi) if math.isfinite(x) else 0.0 for x in (a, b)]
    return (density[0] - density[1]) / weight
