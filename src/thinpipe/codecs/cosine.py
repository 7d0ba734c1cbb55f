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
from functools import lru_cache

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, from_bytes, restored, to_bytes
from thinpipe.codecs.laplace import GAINS, MOST_BITS, codes_of, numbers_of
from thinpipe.codecs.tiles import Tiling
from thinpipe.kernels import kernels_for
from thinpipe.kernels.planes import packed_size

DEFAULT_SIDE = 16

_SAMPLE = 4096
"""From so many tiles, or a few more, it is learned which waves matter."""

_MOST = torch.finfo(torch.bfloat16).max
_RANGE = 2.0**30


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
        unit = _unit(tiles)
        if unit != 1:
            tiles = tiles / unit
        mean = (tiles.mean(0) * unit).clamp(-_MOST, _MOST).to(torch.bfloat16)
        tiles = tiles - mean.to(torch.float32) / unit
        # All waves together are as long as the tile.
        length = torch.linalg.vector_norm(tiles, dim=0) / math.sqrt(tiling.size)
        scale = (length * unit).clamp(max=_MOST).to(torch.bfloat16)
        whole = torch.isfinite(length)  # a tile with a value that is not finite is lost as a whole
        factor = torch.where(scale > 0, (scale.to(torch.float32) / unit).reciprocal(), 0.0)
        waves = _waves(tiling.tall, tiling.wide, x.device)
        sigmas = _sigmas(waves, tiles, factor, whole)
        bits = _shared(sigmas, self._total(tiling))
        used, widths = _used(bits, x.device)
        with torch.autocast(x.device.type, enabled=False):
            found = torch.where(whole, (waves[used] @ tiles) * factor, 0.0)
        sigma = sigmas[used].to(torch.float32)[:, None]
        codes = codes_of(torch.where(sigma > 0, found / sigma, 0.0), widths)
        wave, place = _slots(widths, x.device)
        planes = (codes.index_select(0, wave) >> place[:, None]) & 1
        packed = kernels_for(x.device).pack(planes.view(-1), 1)
        return [to_bytes(sigmas), to_bytes(torch.stack([torch.where(whole, mean, torch.nan), scale])), packed]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        tiling = Tiling.of(shape, self.side)
        sigmas = from_bytes(sections[0], torch.bfloat16)
        mean, scale = from_bytes(sections[1], torch.bfloat16).to(torch.float32).view(2, -1)
        device = scale.device
        bits = _shared(sigmas, self._total(tiling))
        used, widths = _used(bits, device)
        wave, place = _slots(widths, device)
        planes = kernels_for(device).unpack(sections[2], wave.numel() * tiling.count, 1).view(-1, tiling.count)
        codes = torch.zeros(used.numel(), tiling.count, dtype=torch.int32, device=device)
        codes.index_add_(0, wave, planes.to(torch.int32) << place[:, None].to(torch.int32))
        found = numbers_of(codes, widths) * sigmas[used].to(torch.float32)[:, None]
        with torch.autocast(device.type, enabled=False):
            tiles = _waves(tiling.tall, tiling.wide, device)[used].T @ found
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


def _unit(tiles: Tensor) -> float:
    """Tells the power of two to compute in, so that squares stay in their type's range; 1 most of the time."""
    low, high = torch.stack(torch.aminmax(tiles)).tolist()  # both at once: a GPU is waited for
    if not math.isfinite(low) or not math.isfinite(high):
        finite = torch.nan_to_num(tiles, nan=0.0, posinf=0.0, neginf=0.0)
        low, high = torch.stack(torch.aminmax(finite)).tolist()
    peak = max(abs(low), abs(high))
    return 1.0 if peak == 0 or 1 / _RANGE < peak < _RANGE else math.ldexp(1.0, max(-126, math.frexp(peak)[1] - 1))


def _sigmas(waves: Tensor, tiles: Tensor, factor: Tensor, whole: Tensor) -> Tensor:
    """Measures how far each wave goes, over tiles of length 1."""
    some = slice(None, None, max(1, tiles.shape[1] // _SAMPLE))
    with torch.autocast(tiles.device.type, enabled=False):
        found = waves @ (tiles[:, some] * factor[some])
    found = torch.where(whole[some], found, 0.0)
    return (found.square().sum(1) / whole[some].sum().clamp(min=1)).sqrt().to(torch.bfloat16)


def _shared(sigmas: Tensor, total: int) -> list[int]:
    """Shares the bits of a tile among its waves, one by one to the wave whose error each makes the least of.

    It depends on what is sent alone, on numbers that are rounded once: both ends find the same.
    """
    known = torch.nan_to_num(sigmas.cpu().to(torch.float32), nan=0.0, posinf=0.0).clamp(min=0, max=1e15)
    gains = known.square()[:, None] * GAINS
    winners = torch.sort(gains.view(-1), descending=True, stable=True).indices[:total] // MOST_BITS
    return torch.bincount(winners, minlength=known.numel()).tolist()


def _used(bits: list[int], device: torch.device) -> tuple[Tensor, list[int]]:
    """Lists the waves that have bits, and how many each has."""
    return torch.tensor([k for k, width in enumerate(bits) if width], device=device), [w for w in bits if w]


def _slots(widths: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Lists the bits of a tile as they are sent: the wave of each, of those with bits, and its place in a code."""
    waves = [wave for wave, width in enumerate(widths) for _ in range(width)]
    places = [place for width in widths for place in range(width)]
    return torch.tensor(waves, device=device), torch.tensor(places, dtype=torch.uint8, device=device)


@lru_cache(maxsize=16)  # few: whoever sends packets chooses the sizes of tiles
def _waves(tall: int, wide: int, device: torch.device) -> Tensor:
    """Makes the matrix whose rows are the waves of a tile, each of length 1."""
    return torch.kron(_line(tall), _line(wide)).to(device, torch.float32)


def _line(size: int) -> Tensor:
    number = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(math.pi / size * (number[None, :] + 0.5) * number[:, None]) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves
