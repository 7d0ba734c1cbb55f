"""bfloat16 by autocast: convolutions and matrix products in half the bytes, the weights float32 all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from thinpipe.stages.part import Part
from thinpipe.train.recipe import Recipe


@contextmanager
def precision_of(recipe: Recipe) -> Iterator[None]:
    """Surrounds whatever is computed for a recipe; the threads of a pipe see what their caller has entered."""
    with ExitStack() as stack:
        if recipe.precision == "bfloat16":
            # For both kinds of device: whoever trains knows where its stages are, its caller need not.
            stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
            if torch.cuda.is_available():
                stack.enter_context(torch.autocast("cuda", dtype=torch.bfloat16))
        yield


class _Run:
    """Computes a module in a recipe's precision."""

    def __init__(self, body: nn.Module, recipe: Recipe) -> None:
        self._body, self._recipe = body, recipe

    def __call__(self, value: Any) -> Any:
        with precision_of(self._recipe):
            return self._body(value)


def precise(module: nn.Module, recipe: Recipe) -> nn.Module:
    """Makes a module compute in the recipe's precision wherever it is called, under the same names.

    For a server, which no loop surrounds.
    """
    return module if recipe.precision == "float32" else Part(module, _Run(module, recipe))
