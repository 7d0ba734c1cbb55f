"""``dct:B/T``: tiles of T x T neighbours as cosine waves, most bits for the waves that tell most.

Early layers make maps in which neighbours are nearly alike: a few waves say nearly all of a tile, and B bits a number
are spent on them alone. Which waves matter is learned from each tensor, and told once for it::

    sigmas of all waves   16 bits each, once            from them both ends know how many bits each wave has
    a tile                16 bits mean, 16 bits scale
                          B x T x T bits                 the tile less its mean, over its scale, wave by wave

Where neighbours have nothing in common all waves get the same few bits, and ``had`` errs less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, from_bytes, restored, to_bytes
from thinpipe.codecs.laplace import MOST_BITS, codes_of, gain_table, numbers_of
from thinpipe.codecs.tiles import Tiling
from thinpipe.kernels import kernels_for
from thinpipe.kernels.planes import packed_size

DEFAULT_SIDE = 16
_MOST = torch.finfo(torch.bfloat16).max


class Cosine(Coder):
    """Errs least where neighbours are alike; the mean of a tile is kept to 9 bits and better.

    Args:
        bits: of a number, on average; from 1/64 to 8.
        side: of a tile. Smaller planes are one tile, and others are cut evenly.
    """

    shaped = True
    single = True

    def __init__(self, bits: float, side: int = DEFAULT_SIDE) -> None:
        self.bits = bits
        self.side = side

    def __str__(self) -> str:
        return f"dct:{self.bits:g}/{self.side}"

    def pack(self, x: Tensor) -> list[Tensor]:
        tiling = Tiling.of(x.shape, self.side)
        tiles = tiling.cut(x.to(torch.float32))
        # In units of the greatest value, whose squares stay in range; a tile that is not finite is lost as a whole.
        peak = tiles.abs().amax(0)
        unit = torch.where(peak > 0, peak, 1.0)
        tiles = tiles / unit
        mean = (tiles.mean(0) * unit).clamp(-_MOST, _MOST).to(torch.bfloat16)
        with torch.autocast(x.device.type, enabled=False):
            waves = _waves(tiling.tall, tiling.wide, x.device) @ (tiles - mean / unit)
        scale = (waves.square().mean(0).sqrt() * unit).clamp(max=_MOST).to(torch.bfloat16)
        waves = waves * torch.where(scale > 0, unit / scale, 0.0)
        whole = torch.isfinite(scale)
        waves = torch.where(whole, waves, 0.0)
        sigmas = (waves.square().sum(1) / whole.sum().clamp(min=1)).sqrt().to(torch.bfloat16)
        share = _shared(sigmas, self._total(tiling))
        sigma = sigmas.to(torch.float32)[:, None]
        codes = codes_of(torch.where(sigma > 0, waves / sigma, 0.0), share)
        wave, place = _slots(share, self._total(tiling))
        bits = (codes.index_select(0, wave) >> place[:, None]) & 1
        packed = kernels_for(x.device).pack(bits.view(-1), 1)
        return [to_bytes(sigmas), to_bytes(torch.stack([torch.where(whole, mean, torch.nan), scale])), packed]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        tiling = Tiling.of(shape, self.side)
        sigmas = from_bytes(sections[0], torch.bfloat16)
        mean, scale = from_bytes(sections[1], torch.bfloat16).to(torch.float32).view(2, -1)
        share = _shared(sigmas, self._total(tiling))
        wave, place = _slots(share, self._total(tiling))
        bits = kernels_for(scale.device).unpack(sections[2], wave.numel() * tiling.count, 1).view(-1, tiling.count)
        codes = torch.zeros(tiling.size, tiling.count, dtype=torch.int32, device=scale.device)
        codes.index_add_(0, wave, bits.to(torch.int32) << place[:, None].to(torch.int32))
        waves = numbers_of(codes, share) * sigmas.to(torch.float32)[:, None]
        with torch.autocast(scale.device.type, enabled=False):
            tiles = _waves(tiling.tall, tiling.wide, scale.device).T @ waves
        # Halves cannot overflow where a sum can.
        most = torch.finfo(torch.float32).max / 2
        tiles = (tiles * (scale / 2) + mean / 2).clamp_(-most, most) * 2
        return restored(tiling.joined(tiles).view(-1), shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        tiling = Tiling.of(shape, self.side)
        return [2 * tiling.size, 4 * tiling.count, packed_size(tiling.count * self._total(tiling), 1)]

    def _total(self, tiling: Tiling) -> int:
        """Tells how many bits the waves of a tile have together."""
        return min(MOST_BITS * tiling.size, max(1, round(self.bits * tiling.size)))


def _shared(sigmas: Tensor, total: int) -> Tensor:
    """Shares the bits of a tile among its waves, one by one to the wave whose error each makes the least of.

    It depends on what is sent alone, on numbers that are rounded once: both ends find the same.
    """
    known = torch.nan_to_num(sigmas.to(torch.float32), nan=0.0, posinf=0.0).clamp(min=0, max=1e15)
    gains = known.square()[:, None] * gain_table(sigmas.device)
    order = torch.sort(gains.view(-1), descending=True, stable=True).indices[:total]
    won = torch.zeros(sigmas.numel(), dtype=torch.int64, device=sigmas.device)
    return won.index_add_(0, order // MOST_BITS, torch.ones_like(order))


def _slots(share: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Lists the bits of a tile in the order in which they are sent: the wave of each, and its place in the code."""
    wave = torch.repeat_interleave(torch.arange(share.numel(), device=share.device), share, output_size=total)
    first = share.cumsum(0) - share
    return wave, (torch.arange(total, device=share.device) - first[wave]).to(torch.uint8)


@cache
def _waves(tall: int, wide: int, device: torch.device) -> Tensor:
    """Makes the matrix whose rows are the waves of a tile, each of length 1."""
    return torch.kron(_line(tall), _line(wide)).to(device, torch.float32)


def _line(size: int) -> Tensor:
    number = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(math.pi / size * (number[None, :] + 0.5) * number[:, None]) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves
