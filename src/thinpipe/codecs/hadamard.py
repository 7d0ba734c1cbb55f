"""``had:B/G``: blocks of G neighbours, each as ``block:B/G`` has it or rotated at random, whichever errs less.

The rotation is a Hadamard transform after random signs. It spreads an outlier over its whole block, so that no value
sets the scale alone, and makes any block look Gaussian; the levels are the best for a Gaussian. Where there is nothing
to spread, after a ReLU or where neighbours are alike, blocks stay as they are. Each says which it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, from_bytes, restored, to_bytes
from thinpipe.kernels import kernels_for
from thinpipe.kernels.planes import packed_size

DEFAULT_GROUP = 128


class Hadamard(Coder):
    """Errs less than ``block:B/G`` in the sum of squares of every block, and has no bound on the error of one value.

    Args:
        bits: of a code, 1 to 8.
        group: the size of a block, a power of two. Larger blocks cost less, 32 bits each, and spread outliers further.
    """

    shaped = True
    single = True

    def __init__(self, bits: int, group: int = DEFAULT_GROUP) -> None:
        self.bits = bits
        self.group = group

    def __str__(self) -> str:
        return f"had:{self.bits}/{self.group}"

    def pack(self, x: Tensor) -> list[Tensor]:
        flat = x.reshape(-1).to(torch.float32)
        meta, codes = kernels_for(x.device).hadamard_encode(flat, self.bits, self._group(flat.numel()))
        return [to_bytes(meta), codes]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        meta = from_bytes(sections[0], torch.int16).view(-1, 2)
        count = shape.numel()
        decode = kernels_for(meta.device).hadamard_decode
        return restored(decode(meta, sections[1], count, self.bits, self._group(count)), shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        group = self._group(shape.numel())
        blocks = -(-shape.numel() // group)
        return [4 * blocks, packed_size(blocks * group, self.bits)]

    def _group(self, count: int) -> int:
        """Tells the size of a block: no larger than it takes for the whole tensor."""
        return int(min(self.group, 1 << max(0, count - 1).bit_length()))
