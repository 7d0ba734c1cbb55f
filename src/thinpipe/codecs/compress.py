"""``compress``: what crossing a cut does to a tensor and to its gradient, in place, inside any graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from thinpipe.codecs.catalogue import codec
from thinpipe.codecs.codec import Codec
from thinpipe.errors import ArgumentError


class _Cut(torch.autograd.Function):
    """Codes the tensor on its way forward and the gradient on its way back; neither coding has a derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Codec | None, backward: Codec | None) -> Tensor:
        ctx.backward_codec = backward
        if forward is None:
            return x.view_as(x)
        packet = forward.encode(x)
        if backward is not None:
            ctx.backward_codec = backward.for_gradient_of(packet)
        return forward.decode(packet)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad = grads[0]
        if ctx.backward_codec is None:
            return grad, None, None
        codec: Codec = ctx.backward_codec
        return codec.decode(codec.encode(grad)), None, None


def compress(x: Tensor, forward: str | Codec | None = None, backward: str | Codec | None = None) -> Tensor:
    """Returns the tensor as it would arrive after crossing a cut; its gradient will cross the other way.

    The arithmetic is that of the wire, bit for bit. A codec that remembers something from one tensor to the next
    (``power``, ``ef(...)``, ``,sr``) must be made once and given here each time; a text makes a new one.

    Args:
        x: the tensor; if it is not of floating point, it is returned unchanged.
        forward: codes the tensor (default: nothing does).
        backward: codes the gradient (default: nothing does).
    """
    if not isinstance(x, Tensor):
        raise ArgumentError(f"compress takes a tensor, got {x!r:.100}")
    if not x.is_floating_point():
        return x
    there = None if forward is None else codec(forward)
    back = None if backward is None else codec(backward)
    return _Cut.apply(x, there, back)  # type: ignore[no-any-return, no-untyped-call]
