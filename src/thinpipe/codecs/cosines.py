"""Cosine waves of tiles, and the unit to compute in."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

MOST = torch.finfo(torch.bfloat16).max
"""The greatest mean or scale that can be sent."""

_RANGE = 2.0**30


@lru_cache(maxsize=16)  # few: whoever sends packets chooses the sizes of tiles
def waves_of(tall: int, wide: int, device: torch.device) -> Tensor:
    """Makes the matrix whose rows are the waves of a tile, each of length 1."""
    return torch.kron(_line(tall), _line(wide)).to(device, torch.float32)


def _line(size: int) -> Tensor:
    number = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(math.pi / size * (number[None, :] + 0.5) * number[:, None]) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves


def unit_of(tiles: Tensor) -> float:
    """Tells the power of two to compute in, so that squares stay in their type's range; 1 most of the time."""
    low, high = torch.stack(torch.aminmax(tiles)).tolist()  # both at once: a GPU is waited for
    if not math.isfinite(low) or not math.isfinite(high):
        finite = torch.nan_to_num(tiles, nan=0.0, posinf=0.0, neginf=0.0)
        low, high = torch.stack(torch.aminmax(finite)).tolist()
    peak = max(abs(low), abs(high))
    return 1.0 if peak == 0 or 1 / _RANGE < peak < _RANGE else math.ldexp(1.0, max(-126, math.frexp(peak)[1] - 1))
