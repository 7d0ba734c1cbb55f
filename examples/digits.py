"""A model to check, with a skip connection: ``thinpipe check examples/digits.py:small``."""

from collections.abc import Generator

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinpipe.skip import pop, skippable, stash


@skippable(stash=["input"])
class Begin(nn.Module):
    """The first half of a residual block: stashes its input for the end of it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Generator[stash, None, Tensor]:
        """Stashes the input, then convolves it."""
        yield stash("input", x)
        return functional.relu(self.conv(x))


@skippable(pop=["input"])
class End(nn.Module):
    """The second half: adds what was stashed, in another stage if the cut goes through the block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Generator[pop, Tensor, Tensor]:
        """Convolves, and adds what was stashed."""
        skip = yield pop("input")
        return functional.relu(self.conv(x) + skip)


def small(channels: int = 8) -> tuple[nn.Sequential, Tensor]:
    """Returns a residual network for images of 8 x 8 pixels, whose skip crosses a cut in the middle, and a batch."""
    first, head = nn.Conv2d(1, channels, 3, padding=1), nn.Linear(channels * 64, 10)
    model = nn.Sequential(first, nn.ReLU(), Begin(channels), End(channels), nn.Flatten(), head)
    return model, torch.rand(10, 1, 8, 8)
