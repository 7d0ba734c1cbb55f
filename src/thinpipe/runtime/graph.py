"""The graph of one micro-batch in one stage: it begins at leaves of its own, and ends where gradients come in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge


@dataclass
class Graph:
    """The graph of one micro-batch: where its gradients come out, and where they go in."""

    leaves: list[list[Any]]
    outputs: list[list[GradientEdge | None]]


class _Loose(torch.autograd.Function):
    """The identity. A layer may work in place on its result, where it may not on a leaf.

    On the CPU it gives the leaf its gradient itself: autograd would copy it first, being unsure who else has it. On a
    GPU that is left to autograd, which minds the streams.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.leaf = x if x.device.type == "cpu" else None
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor | None:
        (grad,) = grads
        if ctx.leaf is None:
            return grad
        ctx.leaf.grad = grad if ctx.leaf.grad is None else ctx.leaf.grad + grad
        return None


def loosened(value: Any) -> Any:
    """Returns what stands for a leaf in the layers, which may change it in place."""
    return _Loose.apply(value) if is_leaf_of_graph(value) else value  # type: ignore[no-untyped-call]


def is_leaf_of_graph(value: Any) -> bool:
    """Tells whether a value is a tensor that gets a gradient."""
    return isinstance(value, Tensor) and value.requires_grad


def take_grad(value: Any) -> Tensor | None:
    """Takes the gradient from a leaf."""
    if not is_leaf_of_graph(value):
        return None
    grad, value.grad = value.grad, None
    return grad  # type: ignore[no-any-return]
