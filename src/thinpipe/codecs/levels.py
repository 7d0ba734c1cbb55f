"""Levels that are not even: ``nf:4``, made for Gaussians once and for all, and ``kmeans:B``, made for each tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, from_bytes, restored, to_bytes
from thinpipe.kernels import kernels_for
from thinpipe.kernels.planes import packed_size
from thinpipe.kernels.reference import BINS

NF_GROUP = 64

NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""The quantiles of a Gaussian from -1 to 1, 0 among them (Dettmers et al., QLoRA, 2023)."""

_LEAST = 2.0**-126
_POISON = 0x7FC0


class NormalFloat(Coder):
    """The 16 levels of NF4, for blocks of G neighbours scaled to the greatest magnitude among them.

    Args:
        group: the size of a block, each of which costs 16 bits.
    """

    shaped = True
    single = True

    def __init__(self, group: int = NF_GROUP) -> None:
        self.group = group

    def __str__(self) -> str:
        return f"nf:4/{self.group}"

    def pack(self, x: Tensor) -> list[Tensor]:
        flat = x.reshape(-1).to(torch.float32)
        count = flat.numel()
        rows = self._rows(flat)
        peaks = rows.abs().amax(1)
        finite = torch.isfinite(peaks)
        # The upper half of a float32, rounded up so that no value exceeds its block's scale.
        bits = (torch.where(finite, peaks.clamp(min=_LEAST), 1.0).view(torch.int32) + 0xFFFF) >> 16
        scales = (bits.clamp(max=0x7F7F) << 16).view(torch.float32)
        ratios = torch.where(finite[:, None], rows / scales[:, None], 0.0).reshape(-1)[:count]
        borders = _borders(torch.tensor(NF4, device=x.device))
        codes = kernels_for(x.device).nearest(ratios, borders, 4)
        return [to_bytes(torch.where(finite, bits.clamp(max=0x7F7F), _POISON).to(torch.int16)), codes]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        scales = (from_bytes(sections[0], torch.int16).to(torch.int32) << 16).view(torch.float32)
        count = shape.numel()
        table = torch.tensor(NF4, device=scales.device)
        ratios = kernels_for(scales.device).lookup(sections[1], table, count, 4)
        return restored((self._rows(ratios) * scales[:, None]).reshape(-1)[:count], shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        return [2 * -(-shape.numel() // self.group), packed_size(shape.numel(), 4)]

    def _rows(self, flat: Tensor) -> Tensor:
        """Lays a flat tensor out in rows of a block each, the last one filled up; one of fewer elements is one row."""
        group = min(self.group, flat.numel())
        return torch.nn.functional.pad(flat, (0, -flat.numel() % group)).view(-1, group)


class KMeans(Coder):
    """The levels that err least for the tensor at hand, found by k-means in one dimension.

    The centres are found from a histogram, whose bins are 1/128 of their value wide, so the time depends little on the
    tensor's size.

    Args:
        bits: of a code; there are ``2**bits`` centres, sent as float32.
        rounds: how often centres are moved.
    """

    def __init__(self, bits: int, rounds: int = 30) -> None:
        self.bits = bits
        self._rounds = rounds

    def __str__(self) -> str:
        return f"kmeans:{self.bits}"

    def pack(self, x: Tensor) -> list[Tensor]:
        flat = x.reshape(-1).to(torch.float32)
        kernels = kernels_for(x.device)
        ends = kernels.extent(flat)
        centres = self._centres(kernels.histogram(flat).cpu(), ends.cpu()).to(x.device)
        codes = kernels.nearest(flat, _borders(centres), self.bits)
        return [to_bytes(torch.where(ends[0].isnan(), torch.nan, centres)), codes]

    def _centres(self, counts: Tensor, ends: Tensor) -> Tensor:
        """Moves centres to the means of what is nearest to them, in the order of values."""
        used = counts.nonzero().view(-1)
        weights = counts[used].double()
        values = _middles(used).nan_to_num()
        known = torch.cat([torch.zeros(1, dtype=torch.float64), weights.cumsum(0)])
        sums = torch.cat([torch.zeros(1, dtype=torch.float64), (weights * values).cumsum(0)])
        centres = values[self._first(weights, values)]
        for _ in range(self._rounds):
            edges = torch.searchsorted(values, (centres[1:] + centres[:-1]) / 2)
            cuts = torch.cat([torch.zeros(1, dtype=torch.int64), edges, torch.tensor([used.numel()])])
            weight, total = known[cuts].diff(), sums[cuts].diff()
            centres = torch.where(weight > 0, total / weight, centres)
        return torch.maximum(torch.minimum(centres, ends[1].double()), ends[0].double()).float()

    def _first(self, weights: Tensor, values: Tensor) -> Tensor:
        """Chooses the values where centres begin: all, if there are so few.

        Else as dense as the cube root of the density of values, where they end if they are many (Panter and Dite).
        """
        places = torch.arange(2**self.bits)
        last = values.numel() - 1
        if last < 2**self.bits:
            return places.clamp(max=last)
        gaps = values.diff()
        widths = torch.cat([gaps[:1], gaps]) + torch.cat([gaps, gaps[-1:]])
        upto = (weights * widths.square()).pow(1 / 3).cumsum(0)
        return torch.searchsorted(upto, (places + 0.5) / 2**self.bits * upto[-1]).clamp(max=last)

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        table = from_bytes(sections[0], torch.float32)
        kernels = kernels_for(table.device)
        return restored(kernels.lookup(sections[1], table, shape.numel(), self.bits), shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        return [4 * 2**self.bits, packed_size(shape.numel(), self.bits)]


def _borders(levels: Tensor) -> Tensor:
    """Tells where one level becomes nearer than the one before."""
    return levels[1:] * 0.5 + levels[:-1] * 0.5


def _middles(bins: Tensor) -> Tensor:
    """Tells the value in the middle of bins of ``kernels.histogram``; 0 for the bin that holds it."""
    keys = ((bins - BINS // 2) << 16) + 0x8000
    bits = (keys ^ ((keys >> 63) & 0x7FFFFFFF)).to(torch.int32)
    return torch.where((bins == BINS // 2) | (bins == BINS // 2 - 1), 0.0, bits.view(torch.float32).double())
