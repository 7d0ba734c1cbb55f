"""A model's first weights, drawn from a generator of its own.

PyTorch's layers draw theirs from the generator that the whole process shares. A server builds models while it trains
others: their dropout would disturb the weights, and the weights their dropout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from thinpipe.errors import SplitError

Model = TypeVar("Model", bound=nn.Module)
Draw: TypeAlias = Callable[[nn.Conv2d | nn.Linear, torch.Generator], None]
"""Draws the first weights of a layer."""


def as_pytorch(layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    """Draws weights and bias from where PyTorch's own layers do: up to one over the root of the inputs, either sign."""
    bound = 1 / math.sqrt(layer.weight[0].numel())
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    if layer.bias is not None:
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def built(make: Callable[[], Model], seed: int, *, spread: float = 0.01, draw: Draw | None = None) -> Model:
    """Builds a model whose weights depend on the seed alone, whatever other threads draw meanwhile.

    Args:
        make: builds it; called where tensors have no memory, and therefore draws nothing.
        seed: of the weights.
        spread: the standard deviation of the weights of linear layers and embeddings (default: 0.01).
        draw: draws the weights of convolutions and linear layers (default: as torchvision's MobileNetV2, normal ones,
            of convolutions by their outputs, of linear layers with ``spread``).

    Raises:
        SplitError: it has layers with parameters or buffers that nobody knows how to begin.
    """
    with torch.device("meta"):
        model = make()
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    for name, layer in model.named_modules():
        if any(True for _ in layer.parameters(recurse=False)) or any(True for _ in layer.buffers(recurse=False)):
            _begin(name, layer, generator, spread, draw or partial(_as_torchvision, spread=spread))
    return model


def _as_torchvision(layer: nn.Conv2d | nn.Linear, generator: torch.Generator, *, spread: float) -> None:
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", generator=generator)
    else:
        nn.init.normal_(layer.weight, 0, spread, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _begin(name: str, layer: nn.Module, generator: torch.Generator, spread: float, draw: Draw) -> None:
    if isinstance(layer, nn.BatchNorm2d | nn.LayerNorm):
        layer.reset_parameters()  # ones and zeros, statistics included
    elif isinstance(layer, nn.Conv2d | nn.Linear):
        draw(layer, generator)
    elif isinstance(layer, nn.Embedding):
        nn.init.normal_(layer.weight, 0, spread, generator=generator)
        if layer.padding_idx is not None:
            nn.init.zeros_(layer.weight[layer.padding_idx])
    elif not layer._parameters and layer._buffers.keys() <= _COUNTED.keys():
        for each, begin in _COUNTED.items():
            if each in layer._buffers:
                begin(layer.get_buffer(each))
    else:
        raise SplitError(f"{name} is a {type(layer).__name__}, whose first weights a recipe cannot draw")


def _count(places: Tensor) -> None:
    places.copy_(torch.arange(places.shape[-1]).expand(places.shape))


_COUNTED: dict[str, Callable[[Tensor], object]] = {"position_ids": _count, "token_type_ids": Tensor.zero_}
"""Buffers of transformers' embeddings, which are no weights."""
