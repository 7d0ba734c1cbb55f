"""The kernels for blocks in plain torch; see ``reference``."""

from __future__ import annotations

import math
from functools import cache
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

LEVEL_UNIT = 2048
"""Levels of rotated blocks are integers in this fraction of a deviation."""

LEAST_PEAK = 2.0**-100
"""Blocks whose values are all smaller are not rotated: the scale would have bits below the least float."""

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
#
# Whatever is summed is an integer, so that the order of a sum does not matter: a butterfly, a tree and a matrix product
# on tensor cores give the same bits. What is left of floats is one rounding each.


def signs(group: int) -> Tensor:
    """Draws the signs of the random rotation, the same for every block and everywhere."""
    drawn: Tensor = hashed(torch.arange(group), _SIGNS_SEED) & 1
    return (1 - 2 * drawn).to(torch.int32)


def rotated(rows: Tensor) -> Tensor:
    """Applies the Hadamard transform to each row of integers, not normalised."""
    count, group = rows.shape
    span = 1
    while span < group:
        pairs = rows.view(count, group // (2 * span), 2, span)
        rows = torch.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2).view(count, group)
        span *= 2
    return rows


def low_bits(group: int, bits: int) -> int:
    """Tells how many bits a fixed-point number has below its point.

    None where codes have 4 bits or fewer, which leave far more wrong than that; else 10, or what leaves a transform
    within 31 bits.
    """
    return 0 if bits <= 4 else min(10, 20 - group.bit_length())


def fit_shift(group: int) -> int:
    """Tells how many bits of levels are left out of sums of squares, which would not fit in 31 bits."""
    return max(0, (group.bit_length() - 8) // 2)


def zoom_of(peak: Tensor) -> Tensor:
    """Finds the power of two that takes each value to between 1024 and 2048; less for values below ``LEAST_PEAK``."""
    power = (peak.view(torch.int32) & 0x7F800000).view(torch.float32).clamp(min=LEAST_PEAK)
    return 1024.0 / power


def hadamard_encode(x: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Quantizes blocks as they are or after a random rotation, whichever errs less.

    A rotation makes any block look Gaussian, and its levels are the best for a Gaussian. A block that is not rotated is
    quantized as ``blocks_encode`` does it.

    ::

        fixed  = x * zoom, 10 bits before the point and, for codes of more than 4 bits, 10 after it
        turned = H @ (signs * fixed)                       exact
        root   = deviation of turned * 16 / group          by the squares of fixed, a rotation keeps them
        place  = |turned| / deviation, in units of a level
        scale  = deviation * <place, level> / <level, level> / group / zoom, rounded to 16 bits

    Args:
        x: flat.
        bits: of a code, 1 to 8.
        group: the size of a block, a power of two; the last one is filled up.

    Returns:
        Two 16-bit integers a block: those of ``blocks_encode``, or the upper half of a float32 scale and ``ROTATED``;
        and the packed codes.
    """
    levels, borders = (table.to(x.device) for table in tables(bits))
    rows = _in_rows(x, group)
    step_bits, multiple, finite = _spans(rows, bits)
    peak = torch.where(finite, rows.abs().amax(1), 0.0)
    zoom = zoom_of(peak)

    places = _places(rows, step_bits, multiple, finite).clamp(0, 2**bits - 1)
    even = torch.round(places)
    even_sum = torch.round((places - even) * 512.0).to(torch.int32).square().sum(1).to(torch.float32)
    even_step = (step_bits << STEP_BITS).view(torch.float32) * zoom

    fixed = torch.where(finite[:, None], rows * zoom[:, None], 0.0)
    turned = _turned(fixed, low_bits(group, bits))
    square = torch.round(fixed).to(torch.int32).square().sum(1).to(torch.float32)  # a rotation keeps it, group times
    root = (torch.sqrt(square) * (16.0 / group)).clamp(min=1.0)
    places = turned.abs() * ((LEVEL_UNIT * 16.0 / group) / root)[:, None]
    number = torch.searchsorted(borders[borders.numel() // 2 + 1 :].contiguous(), places, right=True).to(torch.int32)

    shift = fit_shift(group)
    chosen = (levels[levels.numel() // 2 + number.long()] + (1 << shift >> 1)) >> shift
    rest = torch.round(places * 0.5**shift).to(torch.int32) - chosen
    error, along, norm = ((a * b).sum(1) for a, b in ((rest, rest), (rest, chosen), (chosen, chosen)))
    # 1/16 is root's, and 1/group undoes the two transforms, which are not normalised.
    ratio = (along + norm).to(torch.float32) / norm.to(torch.float32)
    scale = ratio * (root * 0.0625) * (1.0 / zoom)
    scale_bits = ((scale.view(torch.int32) + 0x8000) >> STEP_BITS).clamp(max=_MOST_STEP)
    excess = 1.0 - (scale_bits << STEP_BITS).view(torch.float32) * zoom * 16.0 / root
    error, along, norm = (total.to(torch.float32) for total in (error, along, norm))
    turned_sum = (error + excess * (along * 2.0 + excess * norm)).clamp(min=0)
    # Both in units of fixed-point numbers; 512 squared of the one sum, and LEVEL_UNIT and 16 squared of the other.
    unit = group * 4.0**shift * 512.0**2 / (LEVEL_UNIT * 16.0) ** 2
    turns = (peak >= LEAST_PEAK) & (turned_sum * (root * root) * unit < even_sum * (even_step * even_step))

    half = 2 ** (bits - 1)
    codes = torch.where(turned < 0, half - 1 - number, half + number)
    codes = torch.where(turns[:, None], codes, torch.where(finite[:, None], even, 0.0).to(torch.int32))
    meta = torch.stack([torch.where(turns, scale_bits, step_bits), torch.where(turns, ROTATED, multiple)], 1)
    return meta.to(torch.int16), pack(codes.reshape(-1), bits)


def _turned(fixed: Tensor, below: int) -> Tensor:
    """Rounds rows to fixed-point numbers, of so many bits below the point, and rotates them."""
    group = fixed.shape[1]
    one = 2.0**below
    high = torch.round(fixed)
    low = torch.round((fixed - high) * one)
    whole = (high * one + low).to(torch.int32)
    return rotated(whole * signs(group).to(fixed.device)).to(torch.float32) * (1.0 / one)


def hadamard_decode(meta: Tensor, packed: Tensor, count: int, bits: int, group: int) -> Tensor:
    """Finds the values again, and turns back the blocks that were rotated."""
    levels = tables(bits)[0].to(packed.device)
    codes = unpack(packed, meta.shape[0] * group, bits).view(-1, group)
    scale_bits, multiple = meta.to(torch.int32).unbind(1)
    scale = (scale_bits << STEP_BITS).view(torch.float32)
    turned = (rotated(levels[codes.long()]) * signs(group).to(packed.device)).to(torch.float32)
    turned = turned * (torch.where(torch.isfinite(scale), scale, torch.nan) * (0.5 / LEVEL_UNIT))[:, None] + 0.0
    even = _half_values(scale_bits, multiple.to(torch.float32), codes)
    values = torch.where((multiple == ROTATED)[:, None], turned, even) * 2.0
    most = torch.finfo(torch.float32).max
    return values.clamp(-most, most).reshape(-1)[:count]


@cache
def tables(bits: int) -> tuple[Tensor, Tensor]:
    """Returns the best levels for a Gaussian of deviation ``LEVEL_UNIT``, and the borders between them.

    Levels are integers that a float16, which has 11 bits, holds; ascending, and symmetric about 0.
    """
    levels = (torch.tensor(gaussian_levels(bits), dtype=torch.float64) * LEVEL_UNIT).to(torch.float16).to(torch.int32)
    return levels, (levels[1:] + levels[:-1]) / 2


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
