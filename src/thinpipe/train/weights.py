"""A model's first weights, drawn from a generator of its own.

PyTorch's layers draw theirs from the generator that the whole process shares. A server builds models while it trains
others: their dropout would disturb the weights, and the weights their dropout.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from thinpipe.errors import SplitError


def built(make: Callable[[], nn.Sequential], seed: int) -> nn.Sequential:
    """Builds a model whose weights depend on the seed alone, whatever other threads draw meanwhile.

    Args:
        make: builds it; called where tensors have no memory, and therefore draws nothing.
        seed: of the weights.

    Raises:
        SplitError: it has layers with parameters or buffers that nobody knows how to begin.
    """
    with torch.device("meta"):
        model = make()
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    for name, layer in model.named_modules():
        if any(True for _ in layer.parameters(recurse=False)) or any(True for _ in layer.buffers(recurse=False)):
            _begin(name, layer, generator)
    return model


def _begin(name: str, layer: nn.Module, generator: torch.Generator) -> None:
    if isinstance(layer, nn.BatchNorm2d):
        layer.reset_parameters()  # ones and zeros, statistics included
        return
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", generator=generator)
    elif isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, 0, 0.01, generator=generator)
    else:
        raise SplitError(f"{name} is a {type(layer).__name__}, whose first weights a recipe cannot draw")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
