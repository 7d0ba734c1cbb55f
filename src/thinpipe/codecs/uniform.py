"""``uniform:B``: one even grid from the least to the greatest value of the tensor.

::

    low        low + step                                          high = low + step * (2**B - 1)
     |----------|----------|----------|----------|----------|-------|
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinpipe.codecs.coder import from_bytes, restored, to_bytes, working, working_dtype
from thinpipe.codecs.dice import MayThrowDice
from thinpipe.kernels import kernels_for
from thinpipe.kernels.planes import packed_size
from thinpipe.kernels.reference import grids_between


class Uniform(MayThrowDice):
    """Errs by half a step at most.

    Args:
        bits: of a code.
        zero: whether 0 is on the grid, which then reaches from the least to the greatest value and to 0.
        stochastic: whether values are rounded up or down at random, so that their mean is kept; errs by a step at most.
    """

    def __init__(self, bits: int, *, zero: bool = False, stochastic: bool = False) -> None:
        super().__init__(stochastic=stochastic)
        self.bits = bits
        self.zero = zero

    def __str__(self) -> str:
        return f"uniform:{self.bits}{',zero' * self.zero}{self.option}"

    def pack(self, x: Tensor) -> list[Tensor]:
        flat = working(x)
        kernels = kernels_for(x.device, flat.dtype)
        grid = self._with_zero(flat) if self.zero else kernels.grids(flat, flat[:0], 2**self.bits - 1)
        low, _, step, scale = grid.unbind()
        start = low
        if self.zero:
            # The grid begins a whole number of steps below 0; that number is what is sent.
            most = torch.floor(torch.finfo(flat.dtype).max / step.double())
            start = torch.where(step > 0, torch.minimum(torch.round(-low.double() / step.double()), most), low * 0.0)
            low = (-start * step.double()).to(flat.dtype)
        codes = kernels.affine(flat, low, scale, self.bits, self.next_seed())
        return [to_bytes(torch.cat([start.to(flat.dtype), step])), codes]

    def _with_zero(self, flat: Tensor) -> Tensor:
        """Lays a grid that reaches to 0."""
        low, high = kernels_for(flat.device, flat.dtype).extent(flat).view(2, 1)
        return grids_between(low.clamp(max=0), high.clamp(min=0), 2**self.bits - 1)

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        start, step = from_bytes(sections[0], working_dtype(dtype)).unbind()
        codes = torch.arange(2**self.bits, dtype=start.dtype, device=start.device)
        # 0 is on the grid only if whole steps are counted from it.
        table = grid_values(step * 0, step, codes - start) if self.zero else grid_values(start, step, codes)
        kernels = kernels_for(step.device, step.dtype)
        return restored(kernels.lookup(sections[1], table, shape.numel(), self.bits), shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        return [2 * working_dtype(dtype).itemsize, packed_size(shape.numel(), self.bits)]


def grid_values(start: Tensor, step: Tensor, codes: Tensor) -> Tensor:
    """Tells the values on a grid; by halves where ``codes * step`` overflows, because the range exceeds the type's."""
    most = torch.finfo(start.dtype).max
    values = start + codes * step
    values = torch.where(values.isinf(), (start * 0.5 + codes * (step * 0.5)) * 2, values)
    return values.clamp(-most, most)
