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


def allotted(octaves: Tensor, weights: Tensor, total: int) -> Tensor:
    """Shares bits one by one, each where it takes most off the error; where two are alike, the first one gets it.

    Args:
        octaves: how far each wave goes, 32-bit integers.
        weights: added to the 64ths of an octave of its square.
        total: how many bits there are; at most ``MOST_BITS`` for each wave.

    Returns:
        How many bits each wave has.
    """
    ranks, gains = 16 * octaves + weights, _gains()
    lowest = int(ranks.min())
    ranks = ranks - lowest
    tally = torch.bincount(ranks)
    steps = torch.arange(len(tally))[:, None] + gains  # by rank: waves are many, and ranks are few

    low, high = int(gains[-1]) - 1, len(tally) - 1 + int(gains[0])
    while high - low > 1:  # above `low` there are as many as there are bits, or more; above `high` fewer
        middle = (low + high) // 2
        if int((tally * (steps > middle).sum(1)).sum()) >= total:
            low = middle
        else:
            high = middle
    more, fewer = ((steps > bound).sum(1) for bound in (low, high))
    alike = (more > fewer)[ranks].nonzero().flatten()
    found = fewer[ranks]
    found[alike[: total - int((tally * fewer).sum())]] += 1
    return found
