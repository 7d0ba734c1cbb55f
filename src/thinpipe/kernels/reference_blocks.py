"""The kernels for blocks in plain torch; see ``reference``."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist

import torch
from torch import Tensor

from thinpipe.kernels.planes import pack, unpack
from thinpipe.kernels.reference import hashed, rounded

STEP_BITS = 16
"""A block's step is the upper half of a float32: its sign, its exponent and 7 bits."""

FRACTIONS = 16
"""A block's base is a multiple of this fraction of its step."""

ROTATED = -32768
"""Stands where a block's base would, if the block is rotated; no base is so far from 0."""

_LEAST_STEP = 2.0**-126
_MOST_STEP = 0x7F7F
_POISON = 0x7FC0
_SLACK = 1.0 / 2040.0
_SIGNS_SEED = 0x9E3779B9


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
    step_bits, multiple, finite = _spans(rows, bits)
    places = _places(rows, step_bits, multiple, finite).reshape(-1)[: x.numel()]
    meta = torch.stack([step_bits, multiple.to(torch.int32)], 1).to(torch.int16)
    return meta, pack(rounded(places, bits, seed), bits)


def _spans(rows: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Finds each row's step, as its bits, and its base, as a multiple; and whether all of the row is finite."""
    low, high = rows.amin(1), rows.amax(1)
    factor = 2.0 / (2**bits - 1 - 1.0 / FRACTIONS)
    step = torch.maximum((high * 0.5 - low * 0.5) * factor, torch.maximum(-low, high) * _SLACK)
    step = torch.where((low != 0) | (high != 0), step.clamp(min=_LEAST_STEP), 0.0)  # and never -0
    step_bits = ((step.view(torch.int32) + 0xFFFF) >> STEP_BITS).clamp(max=_MOST_STEP)
    finite = torch.isfinite(low) & torch.isfinite(high)
    step_bits = torch.where(finite, step_bits, _POISON)
    reciprocal = _reciprocal(step_bits, finite)
    return step_bits, torch.where(finite, torch.floor(low * reciprocal * FRACTIONS), 0.0), finite


def _reciprocal(step_bits: Tensor, finite: Tensor) -> Tensor:
    step = (step_bits << STEP_BITS).view(torch.float32)
    return torch.where(finite & (step > 0), 1.0 / step, 0.0)


def _places(rows: Tensor, step_bits: Tensor, multiple: Tensor, finite: Tensor) -> Tensor:
    """Finds the places of values on the grids of their rows, by halves: a base may lie below the least float."""
    half_base = _half_values(step_bits, multiple, torch.zeros_like(rows[:, :1]))
    grid = (rows * 0.5 - half_base) * (_reciprocal(step_bits, finite) * 2.0)[:, None]
    return torch.where(finite[:, None], grid, 0.0)


def _half_values(step_bits: Tensor, multiple: Tensor, codes: Tensor) -> Tensor:
    """Returns half of ``base + step * code``; the products are exact, and neither they nor the sum can overflow."""
    half = (step_bits << STEP_BITS).view(torch.float32) * 0.5
    base = multiple * (half * (1.0 / FRACTIONS))
    return base[:, None] + codes.to(torch.float32) * half[:, None]


def blocks_decode(meta: Tensor, packed: Tensor, count: int, bits: int, group: int) -> Tensor:
    """Finds the values again: ``base + step * code``."""
    codes = _in_rows(unpack(packed, count, bits), group)
    step_bits, multiple = meta.to(torch.int32).unbind(1)
    most = torch.finfo(torch.float32).max
    values = _half_values(step_bits, multiple.to(torch.float32), codes) * 2.0
    return values.clamp(-most, most).reshape(-1)[:count]


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


def hadamard_encode(x: Tensor, levels: Tensor, borders: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Quantizes blocks as they are or after a random rotation, whichever errs less.

    A rotation makes any block look Gaussian, and its levels are the best for a Gaussian. A block that is not rotated is
    quantized as ``blocks_encode`` does it.

    Args:
        x: flat.
        levels: the best levels for a Gaussian of deviation 1, ascending; a power of two of them.
        borders: between the levels.
        group: the size of a block, a power of two; the last one is filled up.

    Returns:
        Two 16-bit integers a block: those of ``blocks_encode``, or the upper half of a float32 scale and ``ROTATED``;
        and the packed codes.
    """
    bits = int(levels.numel()).bit_length() - 1
    rows = _in_rows(x, group)
    step_bits, multiple, finite = _spans(rows, bits)
    even = rounded(_places(rows, step_bits, multiple, finite).reshape(-1), bits, None).view(rows.shape)
    # A power of two of the block's size: squares neither overflow nor vanish.
    unit = _power_below(torch.where(finite, rows.abs().amax(1), 0.0))[:, None]
    scaled = torch.where(finite[:, None], rows / unit, 0.0)
    rest = scaled - _half_values(step_bits, multiple, even) * (2.0 / unit)
    even_error = tree_sum(rest * rest)
    turned = rotated(scaled * signs(group).to(x.device))
    square = tree_sum(turned * turned)
    deviation = torch.sqrt(square * (1.0 / group))
    inverse = torch.where(deviation > 0, 1.0 / deviation, 0.0)
    places = torch.searchsorted(borders, turned * inverse[:, None], right=True)
    chosen = levels[places]
    along, norm = tree_sum(turned * chosen), tree_sum(chosen * chosen)
    # The scale that errs least, rounded; 1/group undoes the two transforms, which are not normalised.
    scale = (along / norm).clamp(min=0) * (1.0 / group) * unit[:, 0]
    scale_bits = ((scale.view(torch.int32) + 0x8000) >> STEP_BITS).clamp(max=_MOST_STEP)
    scale = (scale_bits << STEP_BITS).view(torch.float32) / unit[:, 0] * group
    turned_error = (square - scale * (along * 2.0 - scale * norm)) * (1.0 / group)
    turns = finite & (turned_error < even_error)
    codes = torch.where(turns[:, None], places.to(torch.int32), even)
    meta = torch.stack([torch.where(turns, scale_bits, step_bits), torch.where(turns, ROTATED, multiple)], 1)
    return meta.to(torch.int16), pack(codes.reshape(-1), bits)


def _power_below(x: Tensor) -> Tensor:
    """Finds the power of two at or below each value, at least the least normal one."""
    return (x.view(torch.int32) & 0x7F800000).view(torch.float32).clamp(min=_LEAST_STEP)


def hadamard_decode(meta: Tensor, packed: Tensor, levels: Tensor, count: int, group: int) -> Tensor:
    """Finds the values again, and turns back the blocks that were rotated."""
    bits = int(levels.numel()).bit_length() - 1
    codes = unpack(packed, meta.shape[0] * group, bits).view(-1, group)
    scale_bits, multiple = meta.to(torch.int32).unbind(1)
    scale = (scale_bits << STEP_BITS).view(torch.float32)
    unit = _power_below(scale)[:, None]
    turned = rotated(levels[codes.long()] * (scale[:, None] / unit)) * signs(group).to(packed.device) * unit
    even = _half_values(scale_bits, multiple.to(torch.float32), codes) * 2.0
    values = torch.where((multiple == ROTATED)[:, None], turned, even)
    most = torch.finfo(torch.float32).max
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
