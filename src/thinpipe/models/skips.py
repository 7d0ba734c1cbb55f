"""The skips that the models share: a residual, and a U-Net's bridge."""

from __future__ import annotations

from collections.abc import Generator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinpipe.stages.skip import Namespace, Skippable, pop, skippable, stash


@skippable(stash=["skip"])
class Stash(nn.Module):
    """Stashes what passes."""

    def forward(self, x: Tensor) -> Generator[stash, None, Tensor]:
        """Passes the input on, and keeps it for the layer that pops it."""
        yield stash("skip", x)
        return x


@skippable(pop=["skip"])
class PopAdd(nn.Module):
    """Adds what was stashed, through a shortcut where the shape has changed in between.

    Args:
        shortcut: what brings the stashed tensor to the shape of the input (default: nothing).
    """

    def __init__(self, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Generator[pop, Tensor, Tensor]:
        """Returns the sum."""
        skip = yield pop("skip")
        return x + (skip if self.shortcut is None else self.shortcut(skip))


@skippable(pop=["skip"])
class PopCat(nn.Module):
    """Puts what was stashed beside the input, as further channels."""

    def forward(self, x: Tensor) -> Generator[pop, Tensor, Tensor]:
        """Pads the input to the size of the skip, which an odd size before pooling makes larger, and joins them."""
        skip = yield pop("skip")
        height, width = (s - i for s, i in zip(skip.shape[2:], x.shape[2:], strict=True))
        if height or width:
            x = functional.pad(x, [width // 2, width - width // 2, height // 2, height - height // 2])
        return torch.cat([x, skip], dim=1)


# A type checker does not see what a class decorator makes of a class; these say it.


def stashed(bridge: Namespace) -> nn.Module:
    """Makes a layer that stashes what passes, for the layer at the other end of the bridge."""
    return cast(Skippable, Stash()).isolate(bridge)


def added(bridge: Namespace, shortcut: nn.Module | None = None) -> nn.Module:
    """Makes a layer that adds what came over the bridge, through a shortcut or as it is."""
    return cast(Skippable, PopAdd(shortcut)).isolate(bridge)


def joined(bridge: Namespace) -> nn.Module:
    """Makes a layer that puts what came over the bridge beside its input."""
    return cast(Skippable, PopCat()).isolate(bridge)
