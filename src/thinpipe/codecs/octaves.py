"""How far waves go, in eighths of an octave, and who gets the bits for it: in integers, so that both ends agree."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
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
def _gains() -> NDArray[np.int64]:
    """What each further bit of a code takes off the square of an error, in 64ths of an octave: falling."""
    found: NDArray[np.int64] = (64 * torch.log2(GAINS.to(torch.float64))).round().to(torch.int64).numpy()
    return found


def allotted(octaves: Tensor, weights: Tensor, strengths: Tensor, total: int) -> Tensor:
    """Shares bits one by one, each where it takes most off the error; where two are alike, the first one gets it.

    In numpy, as there are a dozen small steps for every tensor, which torch takes several times as long to begin.

    Args:
        octaves: how far each wave goes, 32-bit integers.
        weights: added to the 64ths of an octave of its square.
        strengths: of groups, each of which has all the waves: what is added to their octaves there, 0 or less.
        total: how many bits there are; at most ``MOST_BITS`` for each wave of each group.

    Returns:
        How many bits each wave has in each group.
    """
    ranks, gains = 16 * octaves.numpy() + weights.numpy(), _gains()
    ranks -= ranks.min()
    shifts = 16 * (strengths.numpy() - strengths.numpy().min())
    one = np.bincount(ranks)
    tally = np.zeros(len(one) + int(shifts.max()), np.int64)  # by rank: waves are many, and ranks are few
    for shift in shifts:
        tally[shift : shift + len(one)] += one
    # How many bits would take how much off, from the least on: the best ones are given, and some of the next.
    worth = np.zeros(len(tally) + int(gains[0] - gains[-1]), np.int64)
    for gain in gains - gains[-1]:
        worth[gain : gain + len(tally)] += tally
    better = worth[::-1].cumsum()[::-1] - worth
    bound = int(gains[-1]) + int(np.flatnonzero(better >= total)[-1]) if better[0] >= total else int(gains[-1]) - 1
    levels = np.arange(len(tally))[:, None] + gains
    more, fewer = ((levels > least).sum(1) for least in (bound, bound + 1))
    everywhere = ranks + shifts[:, None]
    alike = np.flatnonzero((more > fewer)[everywhere])
    found = fewer[everywhere]
    found.reshape(-1)[alike[: total - int((tally * fewer).sum())]] += 1
    return torch.from_numpy(found)
