"""``wave:B/T``: all channels of T x T neighbours as cosine waves; every bit goes where it takes most off the error.

Channels differ in how much they have to tell, and so do their waves. B bits an element are shared among all waves of
all channels, by how far each goes, which is learned from each tensor and told once for it::

    means of channels     16 bits each, once
    sigmas                8 bits each, once       of every wave of every channel; where places are few, of all waves and
                                                  of all channels, and taken for their products
    strengths             8 bits each, once       of groups of places, the strongest first; of lines of words alone
    a place               16 bits scale
                          B x T x T x channels    the place less the means, over its scale, wave by wave; of lines more
                                                  in a strong place, and less in a weak one

In lines of words, places share bits as well, and count by their squares: most of a text may be what fills it up. All
places of an image have the same bits and count alike, or training loses by it (docs/codecs.md has the figures).

What a layer makes of its input it makes of slow waves before quick ones, and the gradient of a layer's weights has next
to nothing but slow ones in it. So a wave counts the less, the quicker it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, from_bytes, restored, to_bytes
from thinpipe.codecs.cosines import MOST, unit_of, waves_of
from thinpipe.codecs.groups import Groups
from thinpipe.codecs.laplace import MOST_BITS, tables
from thinpipe.codecs.octaves import LEAST, allotted, octaves_of, sigmas_of
from thinpipe.codecs.places import Places
from thinpipe.kernels import kernels_for
from thinpipe.kernels.planes import packed_size

DEFAULT_SIDE = 16

_TOLD = 16
"""What is told once for a tensor has at most one in so many bits, where there is a choice."""

_WORK = 1 << 29
"""How many products may be computed to learn how far waves go; at least some places are looked at."""

_SOME = 32

_MOST_KEPT = 1 << 18
"""Of a tensor that is told more, nothing is kept for the next: whoever sends packets would choose how much is kept."""

_TINY = torch.finfo(torch.float32).tiny

_APART = 1 / 8
"""Means that have a smaller share of a tensor's squares are left to the waves where places share bits: a place without
any would be given means that it does not have, and so would all others like it, which adds up in sums over places."""


class Wave(Coder):
    """Errs little where neighbours are alike, as in images, and where channels differ, as they do nearly everywhere.

    Args:
        bits: of a number, on average; from 1/128 to 8.
        side: of a tile. Smaller planes are one tile, and others are cut evenly.
    """

    shaped = True
    single = True

    def __init__(self, bits: float, side: int = DEFAULT_SIDE) -> None:
        self.bits = bits
        self.side = side

    def __str__(self) -> str:
        return f"wave:{self.bits:.12g}/{self.side}"

    def pack(self, x: Tensor) -> list[Tensor]:
        places = self._places(x.shape)
        groups = Groups.of(places)
        tiles = places.cut(x)
        unit = unit_of(tiles)
        tiles, mean, scale = _levelled(tiles if unit == 1 else tiles / unit, unit, groups)
        sent = scale.to(torch.float32) / unit
        sent = torch.where(sent > 0, sent, 0.0)
        order = groups.order(scale)
        ordered = sent[order].view(groups.number, groups.size)
        waves = waves_of(places.tall, places.wide, x.device)
        told = torch.cat([self._octaves(waves, tiles, sent, order, places, groups), groups.strengths(ordered.square())])
        share = self._shared(to_bytes(told), places, groups)
        found = _product(waves[share.waves], groups.ordered(tiles, order).view(-1, places.size).T)
        found = found.view(-1, groups.number, groups.size)
        factors = torch.where(ordered > 0, ordered.reciprocal(), 0.0)
        edges, encode = tables(x.device)[0], kernels_for(x.device).waves_encode
        packed = []
        for k, part in share.parts:
            rows, gains = found[:, k].index_select(0, part.rows), part.sigmas.reciprocal()
            packed.append(encode(rows, gains, factors[k], part.widths, edges, part.total))
        return [to_bytes(mean), to_bytes(told), to_bytes(scale), torch.cat(packed)]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        places = self._places(shape)
        groups = Groups.of(places)
        mean, scale = (from_bytes(sections[k], torch.bfloat16).to(torch.float32) for k in (0, 2))
        device = scale.device
        share = self._shared(sections[1], places, groups)
        order = groups.order(scale)
        found = torch.zeros(len(share.waves) * places.kinds, groups.number, groups.size, device=device)
        levels, decode = tables(device)[1], kernels_for(device).waves_decode
        sizes = [packed_size(groups.size * part.total, 1) for _, part in share.parts]
        for (k, part), packed in zip(share.parts, sections[3].split(sizes), strict=True):
            found[:, k].index_copy_(0, part.rows, decode(packed, part.sigmas, part.widths, levels, groups.size))
        waves = waves_of(places.tall, places.wide, device)[share.waves]
        small = float(scale.nan_to_num().abs().max() * share.reach + mean.abs().max()) < MOST
        if small:
            found.mul_(scale[order].view(groups.number, groups.size))
            found[: places.kinds] += (math.sqrt(places.size) * mean)[:, None, None]  # the first wave has no hills
        tiles = _product(found.view(len(waves), -1).T, waves).view(places.kinds, -1, places.size)
        tiles = groups.restored(tiles, order)
        if not small:  # a sum could overflow; halves cannot
            most = torch.finfo(torch.float32).max / 2
            tiles = tiles.mul_((scale / 2)[:, None]).add_((mean / 2)[:, None, None]).clamp_(-most, most).mul_(2)
        if small and torch.finfo(dtype).max >= MOST:
            return places.joined(tiles, dtype).view(shape)
        return restored(places.joined(tiles, torch.float32), shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        places = self._places(shape)
        groups = Groups.of(places)
        told = places.kinds * places.size if self._each(places) else places.kinds + places.size
        packed = packed_size(groups.number * groups.size * self._total(places), 1)
        return [2 * places.kinds, told + groups.told, 2 * places.count, packed]

    def _places(self, shape: torch.Size) -> Places:
        return Places.of(shape, self.side, 8 * _TOLD / self.bits)

    def _each(self, places: Places) -> bool:
        """Tells whether every wave of every channel has a sigma of its own."""
        return places.size == 1 or places.count * self.bits >= 8 * _TOLD

    def _total(self, places: Places) -> int:
        """Tells how many bits the waves of a place have together."""
        elements = places.kinds * places.size
        return min(MOST_BITS * elements, max(1, round(self.bits * elements)))

    def _shared(self, told: Tensor, places: Places, groups: Groups) -> _Share:
        """Finds how bits are shared, by what was told."""
        found = _shared if told.numel() <= _MOST_KEPT else _shared.__wrapped__
        return found(places, groups, told.cpu().numpy().tobytes(), self._total(places), told.device)

    def _octaves(
        self, waves: Tensor, tiles: Tensor, scales: Tensor, order: Tensor, places: Places, groups: Groups
    ) -> Tensor:
        """Measures how far each wave of each channel goes, for a place of length 1."""
        enough = max(_SOME, _WORK // (places.kinds * places.size**2))
        some = order[:: max(1, len(order) // enough)]  # of all strengths
        shrunk, counts = groups.counted(tiles[:, some], scales[some])
        found = _product(shrunk.nan_to_num_(0.0, 0.0, 0.0), waves.T)
        squares = found.square().sum(1) / counts.sum().clamp(min=_TINY)
        if self._each(places):
            return octaves_of(squares.T.flatten())
        whole = squares.sum().clamp(min=_TINY)
        return octaves_of(torch.cat([squares.sum(0) / places.kinds, squares.sum(1) * (places.kinds / whole)]))


def _levelled(tiles: Tensor, unit: float, groups: Groups) -> tuple[Tensor, Tensor, Tensor]:
    """Takes the means off all tiles; returns the tiles, and the means and the places' scales as they are sent."""
    kinds, _, size = tiles.shape
    sums = tiles.sum(2)
    whole = torch.isfinite(sums).all(0)  # a place with a value that is not finite is lost as a whole
    known = (whole.sum() * size).clamp(min=1)
    mean = torch.where(whole, sums, 0.0).sum(1) / known
    if not groups.alike:
        squares = torch.where(whole, _lengths(tiles).square(), 0.0).sum()
        mean = torch.where(mean.square().sum() * known > _APART * squares, mean, 0.0)
    mean = (mean * unit).clamp(-MOST, MOST).to(torch.bfloat16)
    tiles = tiles - (mean.to(torch.float32) / unit)[:, None, None]
    length = _lengths(tiles) / math.sqrt(kinds * size)
    return tiles, mean, torch.where(whole, (length * unit).clamp(max=MOST), torch.nan).to(torch.bfloat16)


def _lengths(tiles: Tensor) -> Tensor:
    """Measures the places; one dimension after the other, which takes an eighth of the time that both at once do."""
    each: Tensor = torch.linalg.vector_norm(tiles, dim=2)
    found: Tensor = torch.linalg.vector_norm(each, dim=0)
    return found


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Multiplies in single precision, whatever the model around it does."""
    if not torch.is_autocast_enabled(a.device.type):
        return a @ b
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


class _Part(NamedTuple):
    """What a group of places sends: the rows, which are waves of channels, and of each its bits and its sigma."""

    rows: Tensor
    widths: Tensor
    sigmas: Tensor
    total: int


class _Share:
    """Which waves of which channels have bits in which group, and how far an element goes with them at most.

    Args:
        octaves: of each, waves by waves.
        strengths: of the groups.
        places: that they are of.
        total: how many bits there are for a place, on average.
        device: where to have it.
    """

    def __init__(self, octaves: Tensor, strengths: Tensor, places: Places, total: int, device: torch.device) -> None:
        slowness = _slowness(places)[:, None].expand(-1, places.kinds).flatten()
        bits = allotted(octaves, slowness, strengths, total * len(strengths))
        group, used = bits.nonzero().unbind(1)
        needed = torch.cat([torch.zeros(1, dtype=used.dtype), used // places.kinds])  # means are added to the first
        waves, where = torch.unique(needed, return_inverse=True)
        rows = (where[1:] * places.kinds + used % places.kinds).to(device)
        widths, sigmas = bits[group, used].to(device, torch.int32), sigmas_of(octaves[used]).to(device)
        each, totals = torch.bincount(group, minlength=len(bits)).tolist(), bits.sum(1).tolist()
        parts = zip(rows.split(each), widths.split(each), sigmas.split(each), totals, strict=True)
        self.waves = waves.to(device)
        self.parts = [(k, _Part(*part)) for k, part in enumerate(parts) if part[-1]]
        furthest = sigmas_of(octaves[bits.any(0)]).sum()
        self.reach = 2 / math.sqrt(places.size) * float(tables(torch.device("cpu"))[1].max()) * float(furthest)


@lru_cache(maxsize=8)  # a tensor is often unpacked where others like it were packed a moment ago
def _shared(places: Places, groups: Groups, told: bytes, total: int, device: torch.device) -> _Share:
    numbers = torch.frombuffer(bytearray(told), dtype=torch.int8).to(torch.int32)
    octaves, strengths = numbers.split([len(numbers) - groups.told, groups.told])
    if len(octaves) != places.kinds * places.size:
        waves, kinds = octaves.split([places.size, places.kinds])
        octaves = (waves[:, None] + kinds).clamp(min=LEAST).flatten()
    return _Share(octaves, strengths if groups.told else torch.zeros(1, dtype=torch.int32), places, total, device)


@lru_cache(maxsize=16)
def _slowness(places: Places) -> Tensor:
    """Tells how much less a quick wave counts, in 64ths of an octave of its square; in lines of words none does."""
    if places.last:
        return torch.zeros(places.size, dtype=torch.int32)
    tall, wide = (torch.arange(n, dtype=torch.float64) * (DEFAULT_SIDE / n) for n in (places.tall, places.wide))
    quick = (tall[:, None].square() + wide.square()).sqrt().flatten()
    return (-128 * torch.log2(1 + quick)).round().to(torch.int32)
