"""``sort:Q+S``: the values in 2**S buckets of equal population, each with an even grid of 2**Q values of its own.

::

    values, sorted   |  bucket 0     |  bucket 1 | bucket 2  |     bucket 3         |      equally many in each
                     low0       high0 low1  high1 ...                           high3

    code of a value  =  its bucket in the high S bits, its place on the bucket's grid in the low Q bits

The research prototype sorts for this. Here nothing is sorted: a bucket is known by its least and greatest value, and
those are found by counting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, from_bytes, restored, to_bytes, working, working_dtype
from thinpipe.codecs.uniform import grid_scale, grid_step, grid_values
from thinpipe.kernels import kernels_for
from thinpipe.kernels.planes import packed_size


class Sort(Coder):
    """Errs by half a step of the value's bucket at most.

    Args:
        value_bits: Q, for the place in a bucket.
        split_bits: S, for the bucket.
    """

    def __init__(self, value_bits: int, split_bits: int) -> None:
        self.value_bits = value_bits
        self.split_bits = split_bits

    def __str__(self) -> str:
        return f"sort:{self.value_bits}+{self.split_bits}"

    def pack(self, x: Tensor) -> list[Tensor]:
        flat = working(x)
        kernels = kernels_for(x.device, flat.dtype)
        ranks = _ends(flat.numel(), 2**self.split_bits)
        lows, highs = kernels.order_statistics(flat, ranks).view(2, -1)
        steps = grid_step(lows.double(), highs.double(), 2**self.value_bits - 1, flat.dtype)
        # Values that are not finite sort to the ends.
        finite = torch.isfinite(lows[0]) & torch.isfinite(highs[-1])
        lows, steps = torch.where(finite, lows, torch.nan), torch.where(finite, steps, torch.nan)
        codes = kernels.buckets(flat, lows, grid_scale(steps), self.value_bits, self.split_bits)
        return [to_bytes(torch.stack([lows, steps], 1)), codes]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        lows, steps = from_bytes(sections[0], working_dtype(dtype)).view(-1, 2).unbind(1)
        places = torch.arange(2**self.value_bits, dtype=lows.dtype, device=lows.device)
        table = grid_values(lows[:, None], steps[:, None], places).reshape(-1)
        kernels = kernels_for(lows.device, lows.dtype)
        bits = self.value_bits + self.split_bits
        return restored(kernels.lookup(sections[1], table, shape.numel(), bits), shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        table = 2 * 2**self.split_bits * working_dtype(dtype).itemsize
        return [table, packed_size(shape.numel(), self.value_bits + self.split_bits)]


def _ends(count: int, buckets: int) -> list[int]:
    """Lists the rank of the least value of each bucket, then that of the greatest.

    The first ``count % buckets`` buckets hold one value more. Of fewer values than buckets, the last buckets hold none;
    they repeat the greatest value.
    """
    size, more = divmod(count, buckets)
    starts = [k * size + min(k, more) for k in range(buckets + 1)]
    lows = [min(start, count - 1) for start in starts[:-1]]
    highs = [max(low, end - 1) for low, end in zip(lows, starts[1:], strict=True)]
    return lows + highs
