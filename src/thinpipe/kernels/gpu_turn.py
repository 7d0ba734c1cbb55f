"""The kernel that turns matrices on NVIDIA GPUs; same function and same values as ``reference.turned``.

A program reads a tile along its rows and writes it along its columns, both of neighbours in memory. PyTorch's own copy
reads neighbours or writes them, not both.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinpipe.kernels import reference

TILE = (64, 64)
"""Rows and columns; fewer where a matrix has fewer."""

_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit
def _turn(x, out, rows, columns, most, BOUNDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(0).to(tl.int64) * rows * columns
    there = (row < rows)[:, None] & (column < columns)[None, :]
    values = tl.load(x + first + row[:, None] * columns + column[None, :], mask=there)
    if BOUNDED:
        values = tl.clamp(values.to(tl.float32), -most, most, propagate_nan=tl.PropagateNan.ALL)
    turned = tl.trans(values.to(out.dtype.element_ty))
    tl.store(out + first + column[:, None] * rows + row[None, :], turned, mask=tl.trans(there))


def turned(x: Tensor, dtype: torch.dtype) -> Tensor:
    """See ``reference.turned``."""
    assert x.is_contiguous()
    number, rows, columns = x.shape
    tile = [min(most, max(16, triton.next_power_of_2(size))) for most, size in zip(TILE, (rows, columns), strict=True)]
    grid = (number, triton.cdiv(rows, tile[0]), triton.cdiv(columns, tile[1]))
    # A launch has at most 65,535 programs in all directions but the first.
    if not {x.dtype, dtype} <= set(_TYPES) or max(grid[1:]) > 65535 or rows * columns >= 2**31 or not x.numel():
        return reference.turned(x, dtype)
    out = torch.empty((number, columns, rows), dtype=dtype, device=x.device)
    most = torch.finfo(dtype).max
    bounded = most < torch.finfo(x.dtype).max
    _turn[grid](x, out, rows, columns, most, bounded, *tile)
    return out
