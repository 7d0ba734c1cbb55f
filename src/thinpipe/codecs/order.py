"""The order of a tensor's dimensions in memory, from the slowest to the fastest: ``channels_last`` is 0, 2, 3, 1."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

from thinpipe.codecs.coder import restored
from thinpipe.kernels import kernels_for

Order: TypeAlias = tuple[int, ...]


def memory_order(x: Tensor) -> Order:
    """Tells the order of a tensor that is dense in some order, and the plain one for others."""
    plain = tuple(range(x.dim()))
    if x.is_contiguous():
        return plain
    order = tuple(sorted(plain, key=lambda dim: (-x.stride()[dim], dim)))
    return order if x.permute(order).is_contiguous() else plain


def inverse(order: Sequence[int]) -> list[int]:
    """Tells where in an order each dimension is."""
    return sorted(range(len(order)), key=order.__getitem__)


def reordered(dense: Tensor, now: Order, wanted: Order, dtype: torch.dtype) -> Tensor:
    """Copies a tensor into another order, and another type of floats; returns it as it is where it lies so.

    Args:
        dense: with its dimensions in the order ``now``; it may lie in another, as a view does.
        now: which dimensions those are.
        wanted: in which order the result has them, contiguous.
        dtype: of the result, if it is a copy; what the type cannot hold becomes its greatest value.
    """
    if now == wanted:
        return dense.contiguous()
    across = [now.index(dim) for dim in wanted]
    view = dense.permute(across)
    if dense.dtype == dtype and view.is_contiguous():
        return view
    shape = torch.Size(dense.shape[place] for place in across)
    same = next(place for place, before in enumerate(across) if place != before)
    middle = across[same]
    if across[same:] == [*range(middle, len(now)), *range(same, middle)]:
        # Channels to the end or back: matrices of channels and pixels, transposed.
        sizes = [prod(part) for part in (dense.shape[:same], dense.shape[same:middle], dense.shape[middle:])]
        # A kernel reads memory as it lies, and knows nothing of strides.
        return kernels_for(dense.device, dense.dtype).turned(dense.contiguous().view(sizes), dtype).view(shape)
    return restored(view.contiguous(), shape, dtype)
