"""``had:B/G``: blocks of G neighbours, rotated at random, which makes any of them look Gaussian, and quantized as such.

The rotation is a Hadamard transform after random signs. It spreads an outlier over its whole block, so that no value
sets the scale alone. Where there is nothing to spread, after a ReLU, blocks stay as they are; each says which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, from_bytes, restored, to_bytes
from thinpipe.kernels import kernels_for
from thinpipe.kernels.planes import packed_size
from thinpipe.kernels.reference import gaussian_levels

DEFAULT_GROUP = 256


class Hadamard(Coder):
    """Has no bound on the error of one value; that of a block is near the least that so many bits allow a Gaussian.

    Args:
        bits: of a code, 1 to 8.
        group: the size of a block, a power of two. Larger blocks cost less and spread outliers further.
    """

    def __init__(self, bits: int, group: int = DEFAULT_GROUP) -> None:
        self.bits = bits
        self.group = group

    def __str__(self) -> str:
        return f"had:{self.bits}/{self.group}"

    def pack(self, x: Tensor) -> list[Tensor]:
        flat = x.reshape(-1).to(torch.float32)
        levels, borders, plain = _gaussian(self.bits, x.device)
        kernels = kernels_for(x.device)
        scales, codes = kernels.hadamard_encode(flat, levels, borders, self._group(flat.numel()), plain)
        return [to_bytes(scales), codes]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        scales = from_bytes(sections[0], torch.int16)
        levels, _, _ = _gaussian(self.bits, scales.device)
        count = shape.numel()
        kernels = kernels_for(scales.device)
        return restored(kernels.hadamard_decode(scales, sections[1], levels, count, self._group(count)), shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        group = self._group(shape.numel())
        blocks = -(-shape.numel() // group)
        return [2 * blocks, packed_size(blocks * group, self.bits)]

    def _group(self, count: int) -> int:
        """Tells the size of a block: no larger than it takes for the whole tensor."""
        return int(min(self.group, 1 << max(0, count - 1).bit_length()))


@cache
def _gaussian(bits: int, device: torch.device) -> tuple[Tensor, Tensor, float]:
    """Returns the levels for a Gaussian, the borders between them, and when an even grid from 0 up errs less.

    The even grid of peak p errs by (p / (2**B - 1))**2 / 12 in the mean square, the levels by their distortion times
    the mean square of the block.
    """
    levels = torch.tensor(gaussian_levels(bits), dtype=torch.float64)
    borders = (levels[1:] + levels[:-1]) / 2
    weights, moments = _between(borders)
    distortion = 1 + float((weights * levels**2 - 2 * moments * levels).sum())
    plain = 1 / (12 * (2**bits - 1) ** 2 * distortion)
    return levels.float().to(device), borders.float().to(device), plain


def _between(borders: Tensor) -> tuple[Tensor, Tensor]:
    """Tells how much of a Gaussian lies between each two borders, and its first moment there."""
    end = borders.new_full((1,), torch.inf)
    ends = torch.cat([-end, borders, end])
    return torch.special.ndtr(ends).diff(), -(torch.exp(-ends.square() / 2) / (2 * torch.pi) ** 0.5).diff()
