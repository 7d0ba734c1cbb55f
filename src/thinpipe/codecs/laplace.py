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


def edges_of(bits: int) -> list[float]:
    """Computes where the cells above 0 begin, for a deviation of 1."""
    half = 1 << (bits - 1)
    return [-math.log(1 - k / half) / BENDS[bits] if k else 0.0 for k in range(half)]


@cache
def cells(bits: int) -> tuple[tuple[float, ...], float]:
    """Computes the levels above 0, for a deviation of 1, and the mean squared error of a code."""
    half = 1 << (bits - 1)
    edges = edges_of(bits)
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


def _tables() -> Tensor:
    edges, levels = [0.0], [0.0]
    for bits in range(1, MOST_BITS + 1):
        edges += edges_of(bits)
        levels += cells(bits)[0]
    return torch.tensor([edges, levels])


@cache
def tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """Lists edges and levels of all widths, those of 2**(B - 1) cells from the place of that number on."""
    edges, levels = _tables().to(device)
    return edges, levels
