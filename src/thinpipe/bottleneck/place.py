"""Finds the tensor that is made small among all that crosses a cut, and puts another in its place.

Beside the activations a cut may be crossed by masks, positions and sizes: they pass untouched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from torch import Tensor

from thinpipe.bottleneck.error import BottleneckError

Place: TypeAlias = tuple[Any, ...]
"""The keys and indices that lead to a tensor in a nesting; nothing for a tensor alone."""


def largest(value: Any) -> tuple[Place, Tensor]:
    """Finds the largest floating-point tensor of a nesting, the first one of several.

    Raises:
        BottleneckError: there is none.
    """
    found = list(_tensors(value, ()))
    if not found:
        raise BottleneckError(f"no tensor of floating point crosses the cut, only {type(value).__name__}; use 'none'")
    return max(found, key=lambda pair: pair[1].numel())


def _tensors(value: Any, place: Place) -> Iterator[tuple[Place, Tensor]]:
    if isinstance(value, Tensor) and value.is_floating_point():
        yield place, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _tensors(each, (*place, key))
    elif isinstance(value, tuple | list):
        for index, each in enumerate(value):
            yield from _tensors(each, (*place, index))


def at(value: Any, place: Place) -> Tensor:
    """Returns the tensor at a place."""
    for key in place:
        value = value[key]
    assert isinstance(value, Tensor)
    return value


def changed(value: Any, place: Place, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns a nesting with another tensor at a place; what was given stays as it was.

    Raises:
        BottleneckError: there is no tensor at the place.
    """
    if not place:
        if not isinstance(value, Tensor):
            raise BottleneckError(
                f"a bottleneck was made for a tensor, and got a {type(value).__name__}; insert it with an example of "
                "what the model takes"
            )
        return change(value)
    key, *rest = place
    try:
        inner = changed(value[key], tuple(rest), change)
    except (KeyError, IndexError, TypeError) as error:
        raise BottleneckError(f"a bottleneck finds no {key!r} in the {type(value).__name__} that it got") from error
    if isinstance(value, tuple):
        items = [*value[:key], inner, *value[key + 1 :]]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    other = copy.copy(value)
    other[key] = inner
    return other
