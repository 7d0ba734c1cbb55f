"""Lets a model load weights under torchvision's names.

Torchvision nests its layers and names them by paths, ``layer1.0.conv1``; a sequence has one flat row of layers, and no
dots in their names. Ours are the same paths with underscores, ``layer1_0_conv1``, so translating is a matter of dots.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from thinpipe.stages.skip import Skippable


def accept_torchvision_names(model: nn.Sequential) -> nn.Sequential:
    """Makes ``load_state_dict`` take torchvision's names as well as the model's own; returns the model."""
    model.register_load_state_dict_pre_hook(_rename)
    return model


def _rename(model: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    layers = dict(model.named_children())
    for key in [key for key in state_dict if key.startswith(prefix)]:
        ours = _translated(key.removeprefix(prefix), layers)
        if ours is not None:
            state_dict[prefix + ours] = state_dict.pop(key)


def _translated(key: str, layers: dict[str, nn.Module]) -> str | None:
    """Finds the layer that a path leads to; ``None`` if there is none, or the key is ours already."""
    parts = key.split(".")
    if parts[0] in layers:
        return None
    for k in range(len(parts) - 1, 1, -1):
        name = "_".join(parts[:k])
        if name in layers:
            # A shortcut belongs to the layer that pops the skip.
            inside = ["module", "shortcut"] if isinstance(layers[name], Skippable) else []
            return ".".join([name, *inside, *parts[k:]])
    return None
