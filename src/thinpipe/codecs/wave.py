"""``wave:B/T``: all channels of T x T neighbours as cosine waves; every bit goes where it takes most off the error.

Channels differ in how much they have to tell, and so do their waves, and so do places. B bits an element are shared
among all waves of all channels in all places, by how far each goes, which is learned from each tensor and told once for
it::

    levels of channels    16 bits each, once      means, where they are a good part of the tensor; else drifts
    sigmas                8 bits each, once       of every wave of every channel; where places are few, of all waves and
                                                  of all channels, and taken for their products
    strengths             8 bits each, once       of groups of places, the strongest first, where there are groups
    a place               16 bits scale
                          B x T x T x channels    the place less the means, over its scale, wave by wave: more of a
                                                  strong one, and fewer of a weak one

A drift makes the sum of a channel right. It is what the slowest waves of all places lost together, shared among places
by their scales. The gradient of a bias is such a sum, in which nearly everything cancels; an error that leans to one
side pushes it a little in every step of a training.

Places count by their scales, which is half-way between two ends: if their squares counted, most bits would go to a few
of them; if all counted alike, most bits of a text would go to what fills it up.

What a layer makes of its input it makes of slow waves before quick ones, and the gradient of a layer's weights has next
to nothing but slow ones in it. So a wave counts the less, the quicker it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import starmap
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

_APART = 1 / 8
"""Means that have a smaller share of a tensor's squares are left to the waves: a place without any bits would be given
means that it does not have, and so would all others like it, which adds up in what is summed over places."""


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
        groups = Groups.of(places.count)
        tiles = places.cut(x)
        unit = unit_of(tiles)
        tiles, level, scale, apart = _levelled(tiles if unit == 1 else tiles / unit, unit)
        order = groups.order(scale)
        sent = scale.to(torch.float32) / unit
        sent = torch.where(sent > 0, sent, 0.0)
        ordered = sent[order].view(groups.number, groups.size)
        waves = waves_of(places.tall, places.wide, x.device)
        strengths = groups.strengths(ordered)[: groups.told]
        told = torch.cat([self._octaves(waves, tiles, sent, order, places), strengths, apart.to(torch.int8)[None]])
        share, levelled = self._shared(to_bytes(told), places, groups)
        found = _product(waves[share.waves], tiles.view(-1, places.size).T).view(-1, places.count)
        factors = torch.where(ordered > 0, ordered.reciprocal(), 0.0)
        edges, encode = tables(x.device)[0], kernels_for(x.device).waves_encode
        packed = []
        for k, part in share.parts:
            rows, gains = found[part.rows[:, None], order.view_as(ordered)[k]], part.sigmas.reciprocal()
            packed.append(encode(rows, gains, factors[k], part.widths, edges, part.total))
        if not levelled:
            ordered.view(-1)[places.count :] = 0  # copies
            level = _drift(torch.where(sent > 0, found[: places.kinds], 0.0).sum(1), ordered, share, packed)
        return [to_bytes(level), to_bytes(told), to_bytes(scale), torch.cat(packed)]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        places = self._places(shape)
        groups = Groups.of(places.count)
        level, scale = (from_bytes(sections[k], torch.bfloat16).to(torch.float32) for k in (0, 2))
        device = scale.device
        share, levelled = self._shared(sections[1], places, groups)
        order = groups.order(scale).view(groups.number, groups.size)
        found = torch.zeros(len(share.waves) * places.kinds, places.count, device=device)
        levels, decode = tables(device)[1], kernels_for(device).waves_decode
        sizes = [packed_size(groups.size * part.total, 1) for _, part in share.parts]
        for (k, part), packed in zip(share.parts, sections[3].split(sizes), strict=True):
            # A place that is there twice is the same both times.
            found[part.rows[:, None], order[k]] = decode(packed, part.sigmas, part.widths, levels, groups.size)
        waves = waves_of(places.tall, places.wide, device)[share.waves]
        mean, drift = (level, torch.zeros_like(level)) if levelled else (torch.zeros_like(level), level)
        found[: places.kinds] += drift[:, None]  # the first wave has no hills
        reach = scale.nan_to_num().abs().max() * (share.reach + drift.abs().max()) + mean.abs().max()
        small = float(reach) < MOST
        if small:
            found.mul_(scale)
            found[: places.kinds] += (math.sqrt(places.size) * mean)[:, None]
        tiles = _product(found.view(len(waves), -1).T, waves).view(places.kinds, -1, places.size)
        if not small:  # a sum could overflow; halves cannot
            most = torch.finfo(torch.float32).max / 2
            tiles = tiles.mul_((scale / 2)[:, None]).add_((mean / 2)[:, None, None]).clamp_(-most, most).mul_(2)
        if small and torch.finfo(dtype).max >= MOST:
            return places.joined(tiles, dtype).view(shape)
        return restored(places.joined(tiles, torch.float32), shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        places = self._places(shape)
        groups = Groups.of(places.count)
        told = places.kinds * places.size if self._each(places) else places.kinds + places.size
        packed = packed_size(groups.number * groups.size * self._total(places), 1)
        return [2 * places.kinds, told + groups.told + 1, 2 * places.count, packed]

    def _places(self, shape: torch.Size) -> Places:
        return Places.of(shape, self.side, 8 * _TOLD / self.bits)

    def _each(self, places: Places) -> bool:
        """Tells whether every wave of every channel has a sigma of its own."""
        return places.size == 1 or places.count * self.bits >= 8 * _TOLD

    def _total(self, places: Places) -> int:
        """Tells how many bits the waves of a place have together."""
        elements = places.kinds * places.size
        return min(MOST_BITS * elements, max(1, round(self.bits * elements)))

    def _shared(self, told: Tensor, places: Places, groups: Groups) -> tuple[_Share, bool]:
        """Finds how bits are shared, by what was told, and whether means were taken off."""
        said = told.cpu().numpy().tobytes()
        return _shared(places, groups, said[:-1], self._total(places), told.device), said[-1] != 0

    def _octaves(self, waves: Tensor, tiles: Tensor, scales: Tensor, order: Tensor, places: Places) -> Tensor:
        """Measures how far each wave of each channel goes, for a place of length 1; a place counts by its scale."""
        enough = max(_SOME, _WORK // (places.kinds * places.size**2))
        some = order[:: max(1, len(order) // enough)]  # of all strengths
        known = scales[some].sum().clamp(min=torch.finfo(torch.float32).tiny)
        halved = torch.where(scales[some] > 0, scales[some].rsqrt(), 0.0)[:, None]
        found = _product(tiles[:, some].nan_to_num(0.0, 0.0, 0.0) * halved, waves.T)
        squares = torch.linalg.vector_norm(found, dim=1).square() / known
        if self._each(places):
            return octaves_of(squares.T.flatten())
        whole = squares.sum().clamp(min=torch.finfo(torch.float32).tiny)
        return octaves_of(torch.cat([squares.sum(0) / places.kinds, squares.sum(1) * (places.kinds / whole)]))


def _levelled(tiles: Tensor, unit: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Takes the means off all tiles if they are worth it.

    Returns:
        The tiles; the means and the places' scales as they are sent; whether means were taken off.
    """
    kinds, _, size = tiles.shape
    sums = tiles.sum(2)
    whole = torch.isfinite(sums).all(0)  # a place with a value that is not finite is lost as a whole
    known = (whole.sum() * size).clamp(min=1)
    mean = torch.where(whole, sums, 0.0).sum(1) / known
    squares = torch.where(whole, torch.linalg.vector_norm(tiles, dim=(0, 2)).square(), 0.0).sum()
    apart = mean.square().sum() * known > _APART * squares
    mean = torch.where(apart, mean * unit, 0.0).clamp(-MOST, MOST).to(torch.bfloat16)
    tiles = tiles - (mean.to(torch.float32) / unit)[:, None, None]
    length = torch.linalg.vector_norm(tiles, dim=(0, 2)) / math.sqrt(kinds * size)
    return tiles, mean, torch.where(whole, (length * unit).clamp(max=MOST), torch.nan).to(torch.bfloat16), apart


def _drift(lost: Tensor, scales: Tensor, share: _Share, packed: Sequence[Tensor]) -> Tensor:
    """Finds what is to be added to all places' first waves, for their scales of 1, so that each channel's sum is right.

    Args:
        lost: the sums of all channels' first waves, of which what is decoded is taken off.
        scales: of the groups' places; 0 of those that do not count.
        share: of the bits.
        packed: the parts that were made of it.
    """
    levels, decode = tables(lost.device)[1], kernels_for(lost.device).waves_decode
    for (k, part), codes in zip(share.parts, packed, strict=True):
        rows, bits = part.first
        if not rows:
            continue
        begin = codes[: packed_size(scales.shape[1] * bits, 1)]
        found = decode(begin, part.sigmas[:rows], part.widths[:rows], levels, scales.shape[1])
        lost.index_add_(0, part.rows[:rows], _product(found, scales[k]), alpha=-1)
    return (lost / scales.sum().clamp(min=torch.finfo(torch.float32).tiny)).clamp(-MOST, MOST).to(torch.bfloat16)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Multiplies in single precision, whatever the model around it does."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


class _Part(NamedTuple):
    """What a group of places sends: the rows, which are waves of channels, and of each its bits and its sigma.

    The first waves of channels come first: ``first`` tells how many rows they have, and bits.
    """

    rows: Tensor
    widths: Tensor
    sigmas: Tensor
    total: int
    first: tuple[int, int]


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
        first = bits[:, : places.kinds]
        firsts = zip((first > 0).sum(1).tolist(), first.sum(1).tolist(), strict=True)
        parts = zip(rows.split(each), widths.split(each), sigmas.split(each), totals, firsts, strict=True)
        self.waves = waves.to(device)
        self.parts = [(k, part) for k, part in enumerate(starmap(_Part, parts)) if part.total]
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
