"""Order statistics on NVIDIA GPUs without sorting; same functions and same values as ``reference``.

Values are looked for digit by digit, the highest first, in keys that order as the values do::

    32 bits of a key  =  11 | 11 | 10          three passes; each counts the digits of those values that agree with
                                               what is known so far of the value at a rank, and so finds its next digit
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinpipe.kernels import reference
from thinpipe.kernels.gpu import _key

_DIGITS = ((21, 11), (10, 11), (0, 10))
"""Where each digit begins, and its bits."""

_TILE = 8192
_MOST_RANKS = 32


@triton.jit
def _ordered(x, at, there):
    bits = tl.load(x + at, mask=there, other=0.0).to(tl.int32, bitcast=True)
    return _key(bits).to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def _count_first(x, counts, count, SHIFT: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr):
    """Counts the highest digit of all values."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = at < count
    digits = (_ordered(x, at, there) >> SHIFT).to(tl.int32)
    found = tl.histogram(digits, 1 << BITS, mask=there)
    tl.atomic_add(counts + tl.arange(0, 1 << BITS), found, mask=found > 0)


@triton.jit
def _count_next(
    x, known, counts, count, SHIFT: tl.constexpr, BITS: tl.constexpr, SLOTS: tl.constexpr, TILE: tl.constexpr
):
    """Counts the next digit of the values that agree with what is known; ranks with the same are counted once.

    Few values agree, unless many are equal. Those that equal the greatest of a tile are therefore counted together, for
    to add to one memory cell again and again would take longest.
    """
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = at < count
    keys = _ordered(x, at, there)
    upper = (keys >> (SHIFT + BITS)).to(tl.int32)
    digits = ((keys >> SHIFT) & ((1 << BITS) - 1)).to(tl.int32)
    for slot in tl.static_range(SLOTS):
        prefix = tl.load(known + slot)
        before = tl.load(known + max(slot - 1, 0))
        agrees = there & (upper == prefix) & ((slot == 0) | (prefix != before))
        if tl.max(agrees.to(tl.int32), axis=0) > 0:
            row = counts + slot * (1 << BITS)
            ordered = (keys ^ 0x80000000).to(tl.int32, bitcast=True)
            most = tl.max(tl.where(agrees, ordered, -0x80000000), axis=0)
            equal = agrees & (ordered == most)
            digit = ((most ^ -0x80000000) >> SHIFT) & ((1 << BITS) - 1)
            tl.atomic_add(row + digit, tl.sum(equal.to(tl.int32), axis=0))
            tl.atomic_add(row + digits, 1, mask=agrees & (ordered != most))


@triton.jit
def _pick(counts, known, ranks, found, left, BITS: tl.constexpr, FIRST: tl.constexpr):
    """Finds the digit of one rank from the counts, and the rank among those that have it."""
    slot = tl.program_id(0)
    prefix = tl.load(known + slot)
    owner = slot
    if FIRST:
        owner = 0
    else:
        # Ranks ascend, and so do prefixes: those with the same stand together, and the first was counted.
        while (owner > 0) & (tl.load(known + tl.maximum(owner - 1, 0)) == prefix):
            owner -= 1
    bins = tl.arange(0, 1 << BITS)
    here = tl.load(counts + owner * (1 << BITS) + bins)
    rank = tl.load(ranks + slot)
    digit = tl.sum((tl.cumsum(here, axis=0) <= rank).to(tl.int32), axis=0)
    tl.store(found + slot, (prefix << BITS) | digit)
    tl.store(left + slot, rank - tl.sum(tl.where(bins < digit, here, 0), axis=0))


@cache
def _wanted(ranks: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the ranks in order, and where each one that was asked for is among them."""
    order = sorted(set(ranks))
    return torch.tensor(order, dtype=torch.int32, device=device), torch.tensor(
        [order.index(rank) for rank in ranks], device=device
    )


def order_statistics(x: Tensor, ranks: list[int]) -> Tensor:
    """See ``reference.order_statistics``."""
    if len(set(ranks)) > _MOST_RANKS or x.numel() >= 2**31:
        return reference.order_statistics(x, ranks)
    left, places = _wanted(tuple(ranks), x.device)
    slots = left.numel()
    known = torch.zeros_like(left)
    grid = (triton.cdiv(x.numel(), _TILE),)
    for k, (shift, bits) in enumerate(_DIGITS):
        counts = torch.zeros((1 if k == 0 else slots, 1 << bits), dtype=torch.int32, device=x.device)
        if k == 0:
            _count_first[grid](x, counts, x.numel(), shift, bits, _TILE)
        else:
            _count_next[grid](x, known, counts, x.numel(), shift, bits, slots, _TILE)
        found, rest = torch.empty_like(left), torch.empty_like(left)
        _pick[(slots,)](counts, known, left, found, rest, bits, k == 0)
        known, left = found, rest
    keys = known ^ -0x80000000
    return ((keys ^ ((keys >> 31) & 0x7FFFFFFF)).view(torch.float32) + 0.0)[places]
