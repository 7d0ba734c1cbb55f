"""The same pipeline with nothing on the wire, by which Epipe's report defines the computation time.

::

    first ... vanish | appear ... middle ... vanish | appear ... last        | is a cut that one number a row crosses
                 x -> 0      0 -> x'                                         x' has the shape of x, and was there before

All that the layers compute is computed, forward and backward, in the same order, on the same devices, by the same
processes; no tensor is packed, sent or unpacked. A clock beside such a run needs to know nothing about devices that
compute while their hosts go on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from thinpipe.train import Parts

_SMALL = 1e-4
"""What gradients are about, so that weights stay what they are however long it runs."""


class StandIns:
    """Tensors that are there already, one for each shape and device."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._made: dict[tuple[torch.Size, torch.device], Tensor] = {}

    def of(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Returns one, always the same."""
        key = (shape, device)
        if key not in self._made:
            ramp = torch.linspace(-self._scale, self._scale, shape.numel(), device=device)
            self._made[key] = ramp.reshape(shape)
        return self._made[key]


class Vanish(nn.Module):
    """Gives one number a row in the place of a tensor, and in the backward a gradient of the tensor's shape."""

    def __init__(self) -> None:
        super().__init__()
        self._grads = StandIns(_SMALL)

    def forward(self, x: Tensor) -> Tensor:
        """Lets a tensor vanish."""
        token: Tensor = _Vanish.apply(x, self._grads)  # type: ignore[no-untyped-call]
        return token


class Appear(nn.Module):
    """Gives a tensor in the place of one number a row, and in the backward one number a row.

    Args:
        shape: of the tensor, without its rows.
    """

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self._shape = shape
        self._values = StandIns(1.0)

    def forward(self, token: Tensor) -> Tensor:
        """Has a tensor appear."""
        values = self._values.of(torch.Size([len(token), *self._shape]), token.device)
        x: Tensor = _Appear.apply(token, values)  # type: ignore[no-untyped-call]
        return x


class _Vanish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, grads: StandIns) -> Tensor:
        ctx.shape, ctx.device, ctx.grads = x.shape, x.device, grads
        return x.new_zeros(len(x), 1)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.grads.of(ctx.shape, ctx.device), None


class _Appear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, values: Tensor) -> Tensor:
        # The tensor that is kept must not become part of a graph.
        return values.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0].new_zeros(len(grads[0]), 1), None


def dry(parts: Parts, example: Tensor) -> Parts:
    """Makes parts between which nothing is sent.

    Args:
        parts: the real ones, which the new ones have their layers from.
        example: inputs of one row.
    """
    modes = [(part, part.training) for part in (parts.first, parts.middle)]
    with torch.no_grad():
        before = parts.first.eval()(example)
        after = parts.middle.eval()(before)
    for part, training in modes:
        part.train(training)
    return Parts(
        nn.Sequential(*parts.first.children(), Vanish()),
        nn.Sequential(Appear(before.shape[1:]), *parts.middle.children(), Vanish()),
        nn.Sequential(Appear(after.shape[1:]), *parts.last.children()),
        parts.loss_fn,
    )
