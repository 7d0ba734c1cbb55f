"""A convolution that filters each channel by itself, and trains on CPUs in 16 bits, too."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_HALVES = (torch.bfloat16, torch.float16)


class Depthwise(nn.Conv2d):
    """A convolution of each channel by itself.

    With a stride and 16 bits, oneDNN has no kernel for the gradient of the inputs on CPUs, and falls back to loops that
    take tens of times as long as with float32; so that is what it computes with there, rounded to 16 bits afterwards.

    Args:
        channels: how many come in and go out.
        kernel: its width and height.
        stride: how far apart it looks (default: 1).
    """

    def __init__(self, channels: int, kernel: int, *, stride: int = 1) -> None:
        super().__init__(channels, channels, kernel, stride, padding=kernel // 2, groups=channels, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """Filters some images."""
        dtype = _computed_in(input)
        if input.device.type != "cpu" or dtype not in _HALVES or max(self.stride) == 1:
            return super().forward(input)
        with torch.autocast("cpu", enabled=False):
            outputs: Tensor = self._conv_forward(input.float(), self.weight.float(), None)
            return outputs.to(dtype)


def _computed_in(input: Tensor) -> torch.dtype:
    """Tells the type that a convolution would compute with."""
    if torch.is_autocast_enabled("cpu") and input.dtype != torch.float64:
        return torch.get_autocast_dtype("cpu")
    return input.dtype
