"""How the bits of a tile are shared among its waves, as both ends find it from what is sent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from thinpipe.codecs.laplace import GAINS, MOST_BITS


@dataclass(frozen=True, eq=False)
class Share:
    """The waves of a tile that have bits.

    Args:
        waves: their numbers, 64-bit integers.
        widths: how many bits each has, 32-bit integers.
        total: how many they have together.
    """

    waves: Tensor
    widths: Tensor
    total: int

    @classmethod
    def of(cls, sigmas: Tensor, total: int) -> Share:
        """Shares bits among waves.

        Args:
            sigmas: how far each wave goes, as it is sent.
            total: how many bits there are; at most ``MOST_BITS`` for each wave.
        """
        return _remembered(sigmas.cpu().view(torch.uint8).numpy().tobytes(), total, sigmas.device)


def shared(sigmas: Tensor, total: int) -> Tensor:
    """Shares bits one by one, each to the wave whose error it makes the least of; tells how many each has.

    It depends on what is sent alone, on numbers that are rounded once: both ends find the same.
    """
    known = torch.nan_to_num(sigmas.to(torch.float32), nan=0.0, posinf=0.0).clamp(min=0, max=1e15)
    gains = known.square()[:, None] * GAINS
    winners = torch.sort(gains.view(-1), descending=True, stable=True).indices[:total] // MOST_BITS
    return torch.bincount(winners, minlength=known.numel())


@lru_cache(maxsize=16)  # a tensor is often unpacked where others like it were packed a moment ago
def _remembered(told: bytes, total: int, device: torch.device) -> Share:
    bits = shared(torch.frombuffer(bytearray(told), dtype=torch.bfloat16), total)
    waves = bits.nonzero().flatten()
    return Share(waves.to(device), bits[waves].to(device, torch.int32), total)
