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


@cache
def level_table(device: torch.device) -> Tensor:
    """Makes the table of all levels: row B has those of codes of B bits, and row 0 zeros."""
    table = torch.zeros(MOST_BITS + 1, 1 << MOST_BITS, dtype=torch.float64)
    for bits in range(1, MOST_BITS + 1):
        above = torch.tensor(cells(bits)[0], dtype=torch.float64)
        table[bits, : 1 << bits] = torch.cat([-above.flip(0), above])
    return table.to(device, torch.float32)


@cache
def gain_table(device: torch.device) -> Tensor:
    """Makes the table of what each further bit takes off the mean squared error, for a deviation of 1."""
    errors = [1.0, *(cells(bits)[1] for bits in range(1, MOST_BITS + 1))]
    return torch.tensor([a - b for a, b in pairwise(errors)], device=device)


@cache
def bend_table(device: torch.device) -> Tensor:
    """Makes the table of bends by bits."""
    return torch.tensor(BENDS, device=device)


def codes_of(x: Tensor, bits: Tensor) -> Tensor:
    """Finds the codes of numbers whose rows have a deviation of 1, so many bits for each row."""
    bent = 1 - torch.exp(x.abs() * -bend_table(x.device)[bits][:, None])
    half = torch.exp2(bits.to(torch.float32) - 1)[:, None]
    place = torch.floor((torch.copysign(bent, x) + 1) * half)
    return torch.minimum(place.clamp_(min=0), (2 * half - 1).clamp(min=0)).to(torch.uint8)


def numbers_of(codes: Tensor, bits: Tensor) -> Tensor:
    """Looks up the levels of codes, so many bits for each row."""
    table = level_table(codes.device)
    return table.view(-1)[codes.to(torch.int32) + (bits.to(torch.int32) << MOST_BITS)[:, None]]
