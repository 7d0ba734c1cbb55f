"""Measures how far two steps are apart, quantity by quantity."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from thinpipe.check.step import QUANTITIES, Outcome, Tensors

_FLOOR = 1e-3
"""How small a tensor may be, next to the largest of its quantity, and still be measured by its own size.

A convolution's bias before a BatchNorm has no gradient but rounding errors, and those are allowed to differ.
"""


@dataclass(frozen=True)
class Difference:
    """The largest difference in one quantity.

    Args:
        quantity: one of ``QUANTITIES``.
        tensor: the name of the tensor it is in.
        value: the largest difference of two numbers over the largest magnitude; infinite where two tensors cannot be
            compared at all.
        reason: why they cannot.
    """

    quantity: str
    tensor: str
    value: float
    reason: str = ""


def differences(got: Outcome, expected: Outcome) -> list[Difference]:
    """Finds the largest difference in each quantity of which there is anything to compare."""
    found = [_largest(name, got.quantities[name], expected.quantities[name]) for name in QUANTITIES]
    return [difference for difference in found if difference is not None]


def _largest(quantity: str, got: Tensors, expected: Tensors) -> Difference | None:
    floor = _FLOOR * max((_magnitude(x) for x in (*got.values(), *expected.values())), default=0.0)
    found = [
        _difference(quantity, name, got.get(name), expected.get(name), floor)
        for name in dict.fromkeys((*expected, *got))
    ]
    return max(found, key=lambda difference: difference.value, default=None)


def _difference(quantity: str, name: str, got: Tensor | None, expected: Tensor | None, floor: float) -> Difference:
    reason = _incomparable(got, expected)
    if reason or got is None or expected is None:
        return Difference(quantity, name, math.inf if reason else 0.0, reason)
    apart = (_wide(got) - _wide(expected)).nan_to_num(0.0, 0.0, 0.0).abs()
    largest = float(apart.max()) if apart.numel() else 0.0
    scale = max(_magnitude(got), _magnitude(expected), floor)
    return Difference(quantity, name, largest / scale if scale else 0.0)


def _incomparable(got: Tensor | None, expected: Tensor | None) -> str:
    if (got is None) != (expected is None):
        return "missing in the pipe" if got is None else "missing on one device"
    if got is None or expected is None:
        return ""
    if got.shape != expected.shape:
        return f"shape {tuple(got.shape)} in the pipe, {tuple(expected.shape)} on one device"
    ours, theirs = _wide(got), _wide(expected)
    odd = ~(ours.isfinite() & theirs.isfinite())
    return "" if torch.allclose(ours[odd], theirs[odd], equal_nan=True) else "not finite in one of the two"


def _wide(tensor: Tensor) -> Tensor:
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor.to(torch.float64)


def _magnitude(tensor: Tensor | None) -> float:
    if tensor is None or not tensor.numel():
        return 0.0
    return float(_wide(tensor).nan_to_num(0.0, 0.0, 0.0).abs().max())
