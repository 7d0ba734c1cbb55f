"""How far waves go, in eighths of an octave, and who gets the bits for it: in integers, so that both ends agree."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from thinpipe.codecs.laplace import GAINS

LEAST = -128
"""Of what does not go anywhere."""


def octaves_of(squares: Tensor) -> Tensor:
    """Finds the eighths of an octave of square roots, as signed bytes."""
    found = (4 * torch.log2(squares)).round().clamp(LEAST, 127)
    return torch.where(squares > 0, found, LEAST).to(torch.int8)


def sigmas_of(octaves: Tensor) -> Tensor:
    """Finds the numbers of eighths of octaves."""
    return torch.exp2(octaves.to(torch.float64) / 8).to(torch.float32)


@cache
def _gains() -> Tensor:
    """What each further bit of a code takes off the square of an error, in 64ths of an octave: falling."""
    return (64 * torch.log2(GAINS.to(torch.float64))).round().to(torch.int64)


def allotted(octaves: Tensor, weights: Tensor, strengths: Tensor, total: int) -> Tensor:
    """Shares bits one by one, each where it takes most off the error; where two are alike, the first one gets it.

    Args:
        octaves: how far each wave goes, 32-bit integers.
        weights: added to the 64ths of an octave of its square.
        strengths: of groups, each of which has all the waves: what is added to their octaves there, 0 or less.
        total: how many bits there are; at most ``MOST_BITS`` for each wave of each group.

    Returns:
        How many bits each wave has in each group.
    """
    ranks, gains = 16 * octaves + weights, _gains()
    shifts = 16 * (strengths - int(strengths.min()))
    ranks = ranks - int(ranks.min())
    one = torch.bincount(ranks)
    tally = torch.zeros(len(one) + int(shifts.max()), dtype=one.dtype)
    for shift in shifts.tolist():
        tally[shift : shift + len(one)] += one
    steps = torch.arange(len(tally))[:, None] + gains  # by rank: waves are many, and ranks are few

    low, high = int(gains[-1]) - 1, len(tally) - 1 + int(gains[0])
    while high - low > 1:  # above `low` there are as many as there are bits, or more; above `high` fewer
        middle = (low + high) // 2
        if int((tally * (steps > middle).sum(1)).sum()) >= total:
            low = middle
        else:
            high = middle
    more, fewer = ((steps > bound).sum(1) for bound in (low, high))
    everywhere = ranks + shifts[:, None]
    alike = (more > fewer)[everywhere].flatten().nonzero().flatten()
    found = fewer[everywhere]
    found.view(-1)[alike[: total - int((tally * fewer).sum())]] += 1
    return found
