"""Places in groups, the strongest first: who has more to tell gets more bits. Those of images are all alike, in one.

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
from thinpipe.codecs.places import Places

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
        alike: whether all places count alike; else they count by the squares of their scales.
    """

    count: int
    number: int
    size: int
    alike: bool

    @classmethod
    def of(cls, places: Places) -> Groups:
        """Makes as many groups of lines as there are places for, and one of anything else."""
        count = places.count
        for number in range(min(_MOST, count) if places.lines else 1, 1, -1):
            size = -(-count // (8 * number)) * 8  # a plane of bits is whole bytes
            if number * size <= count * (1 + _WASTE):
                return cls(count, number, size, alike=False)
        return cls(count, 1, count, alike=not places.lines)

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

    def strengths(self, squares: Tensor) -> Tensor:
        """Tells how much weaker each group is than the strongest, in eighths of an octave, as signed bytes.

        Args:
            squares: of the places' scales, in their order.
        """
        each = squares.view(self.number, self.size).mean(1)
        found = (4 * torch.log2(each / each.amax())).round().clamp(LEAST, 0)
        return torch.where(each > 0, found, LEAST).to(torch.int8)[: self.told]

    def counted(self, tiles: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Weighs places: as they are, which is by their squares; or each of length 1, if they are alike.

        Returns:
            The tiles, and how much each place counts.
        """
        if not self.alike:
            return tiles, scales.square()
        factors = torch.where(scales > 0, scales.reciprocal(), 0.0)
        return tiles * factors[:, None], (scales > 0).to(torch.float32)

    def ordered(self, tiles: Tensor, order: Tensor) -> Tensor:
        """Puts the tiles of all places, kinds x places x elements, in the order of groups."""
        return tiles if self.number == 1 else tiles.index_select(1, order)

    def restored(self, tiles: Tensor, order: Tensor) -> Tensor:
        """Puts them in the places' own order again, without those that were added."""
        if self.number == 1:
            return tiles
        return torch.empty_like(tiles[:, : self.count]).index_copy_(1, order[: self.count], tiles[:, : self.count])
