"""Runs the forward of a whole model where only some of its modules are: the rest are stood in for.

A husk is a module without its children: its class, its settings and its forward, with the children that a stage has.
Where the forward calls one that the stage has not, it finds a stand-in::

    first stage     embeddings     layers 0 1     (passes on)
    later stage     (lets in)      layers 2 3     pooler, head

So a stage computes by the model's own code, masks included, whatever version of transformers that is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

_Module = TypeVar("_Module", bound=nn.Module)


class _Entered(threading.local):
    hidden: Any = None
    arguments: dict[str, Any]


_entered = _Entered()
"""What entered the stage that this thread computes. Not kept by the stage, which may be copied and pickled."""


@contextmanager
def entered(hidden: Tensor | None, arguments: dict[str, Any]) -> Iterator[None]:
    """Surrounds the forward of a stage: what comes from the stage before it, and what its base model is called with."""
    before = _entered.__dict__.copy()
    _entered.hidden, _entered.arguments = hidden, arguments
    try:
        yield
    finally:
        _entered.__dict__.clear()
        _entered.__dict__.update(before)


class Entrance:
    """Stands in for what a model does before its layers: lets in what the stage before has computed."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _entered.hidden

    # ViT looks there for the type that its pixels must have.
    @property
    def patch_embeddings(self) -> Entrance:
        return self

    @property
    def projection(self) -> Entrance:
        return self

    @property
    def weight(self) -> Any:
        return _entered.hidden


class Nothing:
    """Stands in for what would be added before the entrance, where it is forgotten."""

    def __call__(self, *_: Any, **__: Any) -> Tensor:
        return torch.zeros((), device=_entered.hidden.device)


class Passage:
    """Stands in for what a later stage does."""

    def __call__(self, value: Any, *_: Any, **__: Any) -> Any:
        return value


class Inside:
    """Stands in for the base model inside a model with a head, which would call it with less than the stage has.

    Args:
        base: the husk of the base model.
    """

    def __init__(self, base: nn.Module) -> None:
        self._base = base

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self._base(**_entered.arguments)


def husk(module: _Module, children: dict[str, nn.Module], stand_ins: dict[str, Any]) -> _Module:
    """Makes a husk.

    Args:
        module: the module, which stays as it is.
        children: those that the stage has.
        stand_ins: what its forward finds instead of the others.
    """
    made = type(module).__new__(type(module))
    made.__dict__.update(module.__dict__)
    made._modules = dict(children)
    # An attribute of the object itself is found before a child is looked for, and has no name in state_dict.
    made.__dict__.update(stand_ins)
    return made
