"""Levels for numbers of a Laplace distribution, which is what a cosine transform makes of images.

A code of B bits is the place of a number on a line that was bent so that even cells err least::

    u = 1 - exp(-bend * |x|)          from 0 to 1, cut into 2**(B - 1) cells, on either side of 0

A level is the mean of its cell, so that what is decoded is right on average.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

MOST_BITS = 8

BENDS = (0.0, 0.5, 0.615, 0.57, 0.535, 0.51, 0.495, 0.485, 0.48)
"""By bits, for a deviation of 1: those that err least. One bit has a single cell, whatever the bend."""

_RATE = math.sqrt(2)


@cache
def cells(bits: int) -> tuple[tuple[float, ...], float]:
    """Computes the levels above 0, for a deviation of 1, and the mean squared error of a code."""
    half = 1 << (bits - 1)
    edges = [-math.log(1 - k / half) / BENDS[bits] for k in range(half)]
    beyond = [math.exp(-_RATE * edge) for edge in edges] + [0.0]
    moment = [(edge + 1 / _RATE) * share for edge, share in zip(edges, beyond, strict=False)] + [0.0]
    share = [beyond[k] - beyond[k + 1] for k in range(half)]
    levels = tuple((moment[k] - moment[k + 1]) / share[k] for k in range(half))
    return levels, 1 - sum(part * level**2 for part, level in zip(share, levels, strict=True))


def _gains() -> Tensor:
    errors = [1.0, *(cells(bits)[1] for bits in range(1, MOST_BITS + 1))]
    return torch.tensor([before - after for before, after in pairwise(errors)])


GAINS = _gains()
"""What each further bit takes off the mean squared error, for a deviation of 1."""


def codes_of(x: Tensor, bits: list[int]) -> Tensor:
    """Finds the codes of numbers whose rows have a deviation of 1, so many bits for each row; x is changed."""
    bends = torch.tensor([-BENDS[width] for width in bits], device=x.device)[:, None]
    half = torch.tensor([float(1 << (width - 1)) for width in bits], device=x.device)[:, None]
    # 2**(B - 1) cells on either side: those below 0 count backwards.
    cell = torch.expm1(x.abs().mul_(bends)).mul_(-half).clamp_(max=half - 1).floor_()
    return torch.where(x < 0, half - 1 - cell, half + cell).to(torch.uint8)


def numbers_of(codes: Tensor, bits: list[int]) -> Tensor:
    """Looks up the levels of codes, so many bits for each row."""
    tables: list[float] = []
    firsts: list[int] = []
    for width in bits:
        above = cells(width)[0]
        firsts.append(len(tables))
        tables += [*(-level for level in reversed(above)), *above]
    rows = torch.tensor(firsts, dtype=torch.int32, device=codes.device)[:, None]
    return torch.tensor(tables, device=codes.device)[codes.to(torch.int32) + rows]
