"""Which tensor is which: where one lies, whether it was changed in place, and which share memory."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

Place: TypeAlias = tuple[Any, ...]


def place(value: Any) -> Place:
    """Tells where a tensor lies and how: two with the same place are the same tensor.

    What has no place, such as an empty tensor or a sparse one, is never the same as anything.
    """
    if not isinstance(value, Tensor) or value.layout is not torch.strided or not value.numel():
        return (object(),)
    return (value.data_ptr(), value.shape, value.stride(), value.dtype)


def copied(value: Any) -> Any:
    """Copies a tensor, and returns anything else as it is."""
    return value.clone() if isinstance(value, Tensor) else value


def versions_of(values: list[Any]) -> list[int]:
    """Lists how often each tensor was changed in place; tensors made in inference mode do not count it."""
    return [value._version for value in values if isinstance(value, Tensor) and not value.is_inference()]


def apart(outputs: list[Any]) -> tuple[list[Any], bool]:
    """Gives every edge memory of its own: a stage that works in place must not reach into what another stage gets.

    Returns:
        The outputs, skips copied where need be, and whether the first of them was also stashed.
    """
    main = {x.untyped_storage().data_ptr() for x in tree_leaves(outputs[0]) if isinstance(x, Tensor)}
    taken = set(main)
    shared = False

    def own(x: Tensor) -> Tensor:
        nonlocal shared
        place = x.untyped_storage().data_ptr()
        shared |= place in main
        if place in taken:
            return x.detach().clone()
        taken.add(place)
        return x

    return [outputs[0], *(tree_map_only(Tensor, own, tree) for tree in outputs[1:])], shared
