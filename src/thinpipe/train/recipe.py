"""A recipe: all that a training run's numbers depend on, as plain data that is printed, saved and compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_type_hints

from thinpipe.errors import ThinpipeError


class RecipeError(ThinpipeError, ValueError):
    """A recipe that does not exist, or a value that it cannot have."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained, and how. Two runs of equal recipes see the same samples in the same order.

    Args:
        name: of the recipe, which decides about model and data.
        cut: where the model is cut for a client and a server; the recipe lists its cuts.
        batch: samples in a batch; the last one of an epoch has what is left.
        epochs: how often every sample is seen.
        lr: the learning rate of SGD.
        momentum: of SGD; 0 for none.
        weight_decay: of SGD; 0 for none.
        seed: of the weights, the order of samples and all that is drawn in training.
        chunks: micro-batches in a batch.
        pixels: the edge of an image.
    """

    name: str
    cut: str
    batch: int
    epochs: int
    lr: float
    momentum: float
    weight_decay: float
    seed: int
    chunks: int
    pixels: int

    def __post_init__(self) -> None:
        # A server takes these numbers from strangers: none may make it reserve memory without bound.
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise RecipeError(f"{name} is a number from {low} to {high}, got {value}")

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Recipe:
        """Reads what ``to_json`` wrote.

        Raises:
            RecipeError: a field is missing, unknown, or of the wrong kind.
        """
        if not isinstance(value, Mapping):
            raise RecipeError(f"a recipe is an object with fields, got {value!r:.100}")
        known = [each.name for each in fields(cls)]
        wrong = sorted(set(known) ^ set(value))
        if wrong:
            raise RecipeError(f"a recipe has exactly the fields {', '.join(known)}; check {', '.join(wrong)}")
        return cls(**{name: _converted(name, value[name]) for name in known})

    def changed(self, changes: Mapping[str, Any]) -> Recipe:
        """Returns the recipe with other values; texts are read as the field's type, as they come from a command line.

        Raises:
            RecipeError: there is no such field, or the value is none of its.
        """
        known = [each.name for each in fields(self) if each.name != "name"]
        for name in changes:
            if name not in known:
                raise RecipeError(f"a recipe has no field {name!r:.40}; it has {', '.join(known)}")
        return replace(self, **{name: _converted(name, value) for name, value in changes.items()})


_RANGES: dict[str, tuple[float, float]] = {
    "batch": (1, 1_000_000),
    "epochs": (0, 1_000_000),
    "lr": (0, 1e6),
    "momentum": (0, 1),
    "weight_decay": (0, 1e6),
    "seed": (0, 2**62),
    "chunks": (1, 4096),
    "pixels": (1, 1024),
}
_KINDS = {str: "a text", int: "a whole number", float: "a number"}


def _converted(name: str, value: Any) -> Any:
    kind = get_type_hints(Recipe)[name]
    try:
        # A number is never taken from true or false, nor a whole one from 1.5.
        fits = isinstance(value, str) or (type(value) in (int, float) and kind is not str)
        converted = kind(value)
        if not fits or (kind is int and not isinstance(value, str) and converted != value):
            raise ValueError
    except (TypeError, ValueError, OverflowError) as error:
        raise RecipeError(f"{name} is {_KINDS[kind]}, got {value!r:.100}") from error
    return converted
