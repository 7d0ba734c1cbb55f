"""Places in groups, the strongest first: who has more to tell gets more bits.

Groups have the same number of places each, so that a bit costs the same in every one, and a packet's size follows from
its shape alone. Which place is in which group is told by the scales, which are sent anyway::

    places      0   1   2   3   4   5   6   7   8   9  10  11
    scales     .1   9   0   0   2  .1   7   8   0   3  .2   0

    groups      1   7   6 │ 9   4  10 │ 0   5   2 │ 3   8  11
    bits        ████████  │ ████      │ ▁▁        │
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thinpipe.codecs.octaves import LEAST

_MOST = 8
"""Groups: with twice as many, captured tensors err less by a tenth at most."""

_WASTE = 1 / 32
"""The share of places that may be added for groups to be alike."""

_FINITE = torch.finfo(torch.bfloat16).max


@dataclass(frozen=True)
class Groups:
    """How places are grouped.

    Args:
        count: of places.
        number: of groups.
        size: of a group, in places. Those at its end may have been added, as copies of the weakest.
    """

    count: int
    number: int
    size: int

    @classmethod
    def of(cls, count: int) -> Groups:
        """Makes as many groups as there are places for."""
        for number in range(min(_MOST, count), 1, -1):
            size = -(-count // (8 * number)) * 8  # a plane of bits is whole bytes
            if number * size <= count * (1 + _WASTE):
                return cls(count, number, size)
        return cls(count, 1, count)

    @property
    def told(self) -> int:
        """How many strengths are sent: none of a single group."""
        return self.number if self.number > 1 else 0

    def order(self, scales: Tensor) -> Tensor:
        """Lists the places of the first group, then those of the next.

        Args:
            scales: of all places, as they are sent; one that is not finite counts as 0.
        """
        if self.number == 1:
            return torch.arange(self.count, device=scales.device)
        # By their bits, which both ends have: of positive numbers they are in the numbers' order.
        bits = torch.where(scales.abs() <= _FINITE, scales.abs(), 0.0).to(torch.bfloat16).view(torch.int16)
        found = bits.sort(descending=True, stable=True).indices
        return torch.cat([found, found[-1:].expand(self.number * self.size - self.count)])

    def strengths(self, counts: Tensor) -> Tensor:
        """Tells how much less each group counts than the strongest, in quarters of an octave, as signed bytes.

        Args:
            counts: how much places count, in their order.
        """
        each = counts.view(self.number, self.size).mean(1)
        found = (4 * torch.log2(each / each.amax())).round().clamp(LEAST, 0)
        return torch.where(each > 0, found, LEAST).to(torch.int8)
