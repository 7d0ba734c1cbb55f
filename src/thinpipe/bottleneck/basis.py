"""The vectors that a bottleneck keeps: those of any data to begin with, or the principal ones of some.

A sender multiplies with rows that are orthogonal and of length one, a receiver with their transpose. With as many of
them as there are dimensions nothing is lost; with fewer, what is lost is what is perpendicular to all of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def starting(count: int, channels: int, edge: int, seed: int) -> Tensor:
    """Makes vectors for patches of which nothing is known: low frequencies of every channel come first.

    The first ones are the means of each channel, the next the slopes, and so on, by the cosine transform: images are
    smooth. Where some frequency is left to only a part of the channels, random mixtures share it, so that no channel is
    simply dropped. Both sides make the same ones.

    Args:
        count: how many.
        channels: of a patch.
        edge: of a patch; 1 for vectors.
        seed: of the mixtures.

    Returns:
        ``count`` rows of ``channels * edge * edge``, in float64.
    """
    waves = _waves(edge)
    whole, rest = divmod(count, channels)
    rows = [torch.kron(torch.eye(channels, dtype=torch.float64), waves[k].reshape(1, -1)) for k in range(whole)]
    if rest:
        mixtures = _random_rows(rest, channels, seed)
        rows.append(torch.kron(mixtures, waves[whole].reshape(1, -1)))
    return torch.cat(rows)


def principal(second_moment: Tensor, count: int) -> Tensor:
    """Finds the vectors of which any data with a second moment loses least; the most important one first."""
    vectors: Tensor = torch.linalg.eigh(second_moment).eigenvectors
    rows = vectors.flip(1)[:, :count].T
    # An eigenvector's sign is anybody's; with this one the result is the same on all machines.
    greatest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    return rows * greatest.sign()


def _waves(edge: int) -> Tensor:
    """Lists the cosine waves of a square, from the slowest to the fastest."""
    places = torch.arange(edge, dtype=torch.float64)
    wave = torch.cos(math.pi / edge * places[:, None] * (places + 0.5)) * math.sqrt(2 / edge)
    wave[0] /= math.sqrt(2)
    order = sorted(((u, v) for u in range(edge) for v in range(edge)), key=lambda at: (at[0] + at[1], at))
    return torch.stack([torch.outer(wave[u], wave[v]) for u, v in order])


def _random_rows(count: int, size: int, seed: int) -> Tensor:
    noise = torch.randn(size, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    columns: Tensor
    triangle: Tensor
    columns, triangle = torch.linalg.qr(noise)
    return (columns * triangle.diagonal().sign()).T
