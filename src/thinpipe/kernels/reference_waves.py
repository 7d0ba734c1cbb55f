"""What the kernels for waves compute, in plain torch: codes of a row's own width, bit by bit next to each other.

A row of numbers, one for each tile, has codes of 1 to 8 bits. Half of them are for numbers below 0, counted backwards::

    code        0     1     2     3     4     5     6     7          3 bits, half = 4
    cell        3     2     1     0     0     1     2     3
    number   -e3   -e2   -e1     0     0    e1    e2    e3           e: edges, where cells begin

Both tables have all widths in one: the edges of ``half`` cells, and their levels, are at ``half`` to ``2 * half - 1``.
Sent are the lowest bits of all tiles' codes in a row, then the next ones, then the next row's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thinpipe.kernels.planes import pack, unpack


def waves_encode(rows: Tensor, gains: Tensor, factors: Tensor, widths: Tensor, edges: Tensor, total: int) -> Tensor:
    """Finds the codes of numbers, and packs them.

    Args:
        rows: the numbers, each still to be multiplied by its row's gain, and then by its column's factor; one that is
            not finite then is a 0.
        gains: of each row.
        factors: of each column.
        widths: the bits of each row's codes, 32-bit integers.
        edges: 256 floats.
        total: the sum of the widths.
    """
    numbers = rows * gains[:, None] * factors
    numbers = torch.where(numbers.isfinite(), numbers, 0.0)
    codes = torch.empty(rows.shape, dtype=torch.uint8, device=rows.device)
    for width in widths.unique().tolist():
        of_width, half = widths == width, 1 << (width - 1)
        some = numbers[of_width]
        cell = torch.bucketize(some.abs(), edges[half + 1 : 2 * half], right=True)
        codes[of_width] = torch.where(some < 0, half - 1 - cell, half + cell).to(torch.uint8)
    row, place = slots(widths, total)
    bits = (codes.index_select(0, row) >> place[:, None].to(torch.uint8)) & 1
    return pack(bits.view(-1), 1)


def waves_decode(packed: Tensor, scales: Tensor, widths: Tensor, levels: Tensor, count: int) -> Tensor:
    """Finds the levels of codes.

    Args:
        packed: what ``waves_encode`` returned.
        scales: each row's, which its levels are multiplied by.
        widths: the bits of each row's codes, 32-bit integers.
        levels: 256 floats.
        count: of columns.
    """
    total = int(widths.sum())
    row, place = slots(widths, total)
    bits = unpack(packed, total * count, 1).view(total, count)
    codes = torch.zeros(len(widths), count, dtype=torch.int32, device=packed.device)
    codes.index_add_(0, row, bits << place[:, None])
    half = (1 << (widths - 1))[:, None]
    above = codes >= half
    found = levels[torch.where(above, codes, 2 * half - 1 - codes)] * scales[:, None]
    return torch.where(above, found, -found)


def slots(widths: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Lists the bits of a column as they are sent: the row of each, and its place in a code."""
    row = torch.repeat_interleave(
        torch.arange(len(widths), dtype=torch.int32, device=widths.device), widths, output_size=total
    )
    first = widths.cumsum(0, dtype=torch.int32) - widths
    return row, torch.arange(total, dtype=torch.int32, device=widths.device) - first[row]
