"""What a server lends to its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from thinpipe import arguments

MakeOptimizer: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Offer:
    """The middle of a model, made anew for every session.

    Args:
        make: builds it. Called with the session's seed as that of the default generator, so that a session's first
            weights depend on the seed alone.
        optimizer: makes the optimizer of its parameters.
        example: what it gets for one row: a tensor, or a nesting of them. With one, a client whose activations have
            another shape is refused before anything is computed (default: shapes are not compared).
    """

    make: Callable[[], nn.Module]
    optimizer: MakeOptimizer
    example: Any = None

    def __post_init__(self) -> None:
        arguments.function("make", self.make, takes="lambda: nn.Sequential(...)")
        arguments.function("optimizer", self.optimizer, takes="lambda weights: torch.optim.SGD(weights, lr=0.1)")
