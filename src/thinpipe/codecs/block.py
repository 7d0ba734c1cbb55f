"""``block:B/G``: an even grid for every block of G neighbours, from their least to their greatest value.

::

    [ G values ][ G values ][ G values ] ...      per block: B bits a value, 16 bits for the step, 16 for the base
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinpipe.codecs.coder import from_bytes, restored, to_bytes
from thinpipe.codecs.dice import MayThrowDice
from thinpipe.kernels import kernels_for
from thinpipe.kernels.planes import packed_size

DEFAULT_GROUP = 128


class Block(MayThrowDice):
    """Errs by half a step of the block at most, rounding of the step included; 0 stays 0 where it is the least value.

    Args:
        bits: of a code.
        group: the size of a block. Smaller blocks err less and cost 32 bits each.
        stochastic: whether values are rounded up or down at random, so that their mean is kept; errs by a step at most.
    """

    shaped = True
    single = True

    def __init__(self, bits: int, group: int = DEFAULT_GROUP, *, stochastic: bool = False) -> None:
        super().__init__(stochastic=stochastic)
        self.bits = bits
        self.group = group

    def __str__(self) -> str:
        return f"block:{self.bits}/{self.group}{self.option}"

    def pack(self, x: Tensor) -> list[Tensor]:
        flat = x.reshape(-1).to(torch.float32)
        meta, codes = kernels_for(x.device).blocks_encode(flat, self.bits, self.group, self.next_seed())
        return [to_bytes(meta), codes]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        meta = from_bytes(sections[0], torch.int16).view(-1, 2)
        count, decode = shape.numel(), kernels_for(meta.device).blocks_decode
        group = min(self.group, count)  # or a few elements would take the memory of a whole block
        return restored(decode(meta, sections[1], count, self.bits, group), shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        count = shape.numel()
        return [4 * -(-count // self.group), packed_size(count, self.bits)]
