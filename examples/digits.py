"""A model to check: ``thinpipe check examples/digits.py:small``."""

import torch
from torch import nn

from thinpipe.demo import network


def small() -> tuple[nn.Sequential, torch.Tensor]:
    """Returns the demo's residual network, whose skip crosses a cut in the middle, and a batch of images."""
    return network(channels=8), torch.rand(10, 1, 8, 8)
