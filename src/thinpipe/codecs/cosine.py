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

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, from_bytes, restored, to_bytes
from thinpipe.codecs.cosines import MOST, unit_of, waves_of
from thinpipe.codecs.laplace import MOST_BITS, tables
from thinpipe.codecs.share import Share
from thinpipe.codecs.tiles import Tiling
from thinpipe.kernels import kernels_for
from thinpipe.kernels.planes import packed_size

DEFAULT_SIDE = 16

_SAMPLE = 4096
"""From so many tiles, or a few more, it is learned which waves matter."""


class Cosine(Coder):
    """Errs least where neighbours are alike; the mean of a tile is kept to 9 bits or better.

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
        return f"dct:{self.bits:.12g}/{self.side}"

    def pack(self, x: Tensor) -> list[Tensor]:
        tiling = Tiling.of(x.shape, self.side)
        tiles = tiling.cut(x.to(torch.float32))
        unit = unit_of(tiles)
        if unit != 1:
            tiles = tiles / unit
        mean = (tiles.mean(1) * unit).clamp(-MOST, MOST).to(torch.bfloat16)
        tiles = tiles - (mean.to(torch.float32) / unit)[:, None]
        # All waves together are as long as the tile.
        length = torch.linalg.vector_norm(tiles, dim=1) / math.sqrt(tiling.size)
        scale = (length * unit).clamp(max=MOST).to(torch.bfloat16)
        whole = torch.isfinite(length)  # a tile with a value that is not finite is lost as a whole
        factor = torch.where(whole & (scale > 0), (scale.to(torch.float32) / unit).reciprocal(), 0.0)
        waves = waves_of(tiling.tall, tiling.wide, x.device)
        sigmas = _sigmas(waves, tiles, factor, whole)
        share = Share.of(sigmas, self._total(tiling))
        sigma = sigmas[share.waves].to(torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            found = waves[share.waves] @ tiles.T
        gains = torch.where(sigma > 0, sigma.reciprocal(), 0.0)
        edges, _ = tables(x.device)
        packed = kernels_for(x.device).waves_encode(found, gains, factor, share.widths, edges, share.total)
        return [to_bytes(sigmas), to_bytes(torch.stack([torch.where(whole, mean, torch.nan), scale])), packed]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        tiling = Tiling.of(shape, self.side)
        sigmas = from_bytes(sections[0], torch.bfloat16)
        mean, scale = from_bytes(sections[1], torch.bfloat16).to(torch.float32).view(2, -1, 1)
        device = scale.device
        share = Share.of(sigmas, self._total(tiling))
        sigma = sigmas[share.waves].to(torch.float32)
        _, levels = tables(device)
        found = kernels_for(device).waves_decode(sections[2], sigma, share.widths, levels, tiling.count)
        with torch.autocast(device.type, enabled=False):
            tiles = found.T @ waves_of(tiling.tall, tiling.wide, device)[share.waves]
        # Halves cannot overflow where a sum can.
        most = torch.finfo(torch.float32).max / 2
        tiles = tiles.mul_(scale / 2).add_(mean / 2).clamp_(-most, most).mul_(2)
        return restored(tiling.joined(tiles).view(-1), shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        tiling = Tiling.of(shape, self.side)
        return [2 * tiling.size, 4 * tiling.count, packed_size(tiling.count * self._total(tiling), 1)]

    def _total(self, tiling: Tiling) -> int:
        """Tells how many bits the waves of a tile have together."""
        return min(MOST_BITS * tiling.size, max(1, round(self.bits * tiling.size)))


def _sigmas(waves: Tensor, tiles: Tensor, factor: Tensor, whole: Tensor) -> Tensor:
    """Measures how far each wave goes, over tiles of length 1."""
    some = slice(None, None, max(1, len(tiles) // _SAMPLE))
    with torch.autocast(tiles.device.type, enabled=False):
        found = (tiles[some] * factor[some, None]) @ waves.T
    found = torch.where(whole[some, None], found, 0.0)
    return (found.square().sum(0) / whole[some].sum().clamp(min=1)).sqrt().to(torch.bfloat16)
