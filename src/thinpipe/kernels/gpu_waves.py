"""The kernels for waves on NVIDIA GPUs; same functions and same bytes as ``reference_waves``."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinpipe.kernels import reference_waves
from thinpipe.kernels.gpu import _EXACT, _ROWS
from thinpipe.kernels.planes import packed_size

_COLUMNS = 1024
_BYTES = 64
_INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _code(number, half, edges):
    """Finds the codes of numbers, of which one that is not finite is a 0; half is a number, or one for each."""
    number = tl.where(tl.abs(number) < _INFINITY, number, 0.0)
    length = tl.abs(number)
    cell = tl.zeros_like(length).to(tl.int32)
    step = half
    for _ in tl.static_range(7):
        step = step >> 1
        beyond = (step > 0) & (length >= tl.load(edges + half + cell + step))
        cell += tl.where(beyond, step, 0)
    return tl.where(number < 0.0, half - 1 - cell, half + cell)


@triton.jit
def _encode_rows(x, gains, factors, widths, first, edges, out, count, BYTES: tl.constexpr):
    """Makes some bytes of each of a row's bits, where every row begins with a byte."""
    row = tl.program_id(0)
    byte = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    column = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    there = column < count
    width = tl.load(widths + row)
    number = tl.load(x + row.to(tl.int64) * count + column, mask=there, other=0.0)
    number *= tl.load(gains + row)
    number *= tl.load(factors + column, mask=there, other=0.0)
    code = _code(number, 1 << (width - 1), edges)
    start = tl.load(first + row).to(tl.int64)
    for place in tl.static_range(8):
        packed = tl.sum(((code >> place) & 1) << tl.arange(0, 8)[None, :], axis=1)
        mask = (byte * 8 < count) & (place < width)
        tl.store(out + (start + place) * (count // 8) + byte, packed.to(tl.uint8), mask=mask)


@triton.jit
def _encode(x, gains, factors, row, place, widths, edges, out, count, size, ROWS: tl.constexpr):
    """Makes bytes, of eight codes' bits each; a code is found anew for every bit of it."""
    byte = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    there = at < size
    slot = at // count
    column = at - slot * count
    which = tl.load(row + slot, mask=there, other=0)
    half = 1 << (tl.load(widths + which, mask=there, other=1) - 1)
    number = tl.load(x + which.to(tl.int64) * count + column, mask=there, other=0.0)
    number *= tl.load(gains + which, mask=there, other=0.0)
    number *= tl.load(factors + column, mask=there, other=0.0)
    bits = (_code(number, half, edges) >> tl.load(place + slot, mask=there, other=0)) & 1
    packed = tl.sum(tl.where(there, bits, 0) << tl.arange(0, 8)[None, :], axis=1)
    tl.store(out + byte, packed.to(tl.uint8), mask=byte * 8 < size)


@triton.jit
def _decode(packed, scales, widths, first, levels, out, count, COLUMNS: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < count
    width = tl.load(widths + row)
    start = tl.load(first + row).to(tl.int64)
    code = tl.zeros([COLUMNS], tl.int32)
    for place in tl.static_range(8):
        at = (start + place) * count + column
        byte = tl.load(packed + (at >> 3), mask=there & (place < width), other=0).to(tl.int32)
        code |= ((byte >> (at & 7).to(tl.int32)) & 1) << place
    half = 1 << (width - 1)
    above = code >= half
    found = tl.load(levels + tl.where(above, code, 2 * half - 1 - code)) * tl.load(scales + row)
    tl.store(out + row.to(tl.int64) * count + column, tl.where(above, found, -found), mask=there)


def waves_encode(rows: Tensor, gains: Tensor, factors: Tensor, widths: Tensor, edges: Tensor, total: int) -> Tensor:
    """See ``reference_waves.waves_encode``."""
    count = rows.shape[1]
    size = total * count
    if not size:
        return reference_waves.waves_encode(rows, gains, factors, widths, edges, total)
    out = torch.empty(packed_size(size, 1), dtype=torch.uint8, device=rows.device)
    rows = rows.contiguous()
    if count % 8 == 0:
        by_row = (len(widths), triton.cdiv(count, 8 * _BYTES))  # the first may be many
        _encode_rows[by_row](rows, gains, factors, widths, _firsts(widths), edges, out, count, _BYTES, **_EXACT)
        return out
    row, place = reference_waves.slots(widths, total)
    grid = (triton.cdiv(len(out), _ROWS),)
    _encode[grid](rows, gains, factors, row, place, widths, edges, out, count, size, _ROWS, **_EXACT)
    return out


def waves_decode(packed: Tensor, scales: Tensor, widths: Tensor, levels: Tensor, count: int) -> Tensor:
    """See ``reference_waves.waves_decode``."""
    out = torch.empty(len(widths), count, device=packed.device)
    if not count:
        return out
    grid = (len(widths), triton.cdiv(count, _COLUMNS))
    _decode[grid](packed, scales, widths, _firsts(widths), levels, out, count, _COLUMNS, **_EXACT)
    return out


def _firsts(widths: Tensor) -> Tensor:
    """Lists the place of each row's first bit among all bits of a column."""
    return widths.cumsum(0, dtype=torch.int32) - widths
