"""What is made from a recipe: the three parts of its model, its optimizer, its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinpipe.cutting import split
from thinpipe.stages.parts import Split
from thinpipe.train.bottlenecks import with_bottlenecks
from thinpipe.train.data import Data
from thinpipe.train.precision import precision_of
from thinpipe.train.recipe import Recipe
from thinpipe.train.recipes import subject_of


@dataclass(frozen=True)
class Parts:
    """A model in three parts, each with the names of the whole.

    Args:
        first: the client's, which takes the inputs.
        middle: the server's.
        last: the client's, which gives the outputs.
        loss_fn: of outputs and targets, the mean over rows.
    """

    first: nn.Module
    middle: nn.Module
    last: nn.Module
    loss_fn: Callable[[Tensor, Tensor], Tensor]


def whole(recipe: Recipe) -> nn.Module:
    """Builds the whole model; its first weights depend on nothing but the recipe, and the files that it names.

    A model of transformers takes more than a tensor; ``stages_of`` makes of any model what takes a batch's inputs.
    """
    model = subject_of(recipe.name).model(recipe)
    if recipe.layout == "channels_last":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def stages_of(recipe: Recipe, stages: int | None = None) -> Split:
    """Builds the model and cuts it into stages: the first takes the inputs of a batch, the last gives the outputs.

    The recipe's bottlenecks are at the cuts.

    Args:
        recipe: what to train.
        stages: how many of about the same size (default: the three of the recipe's cut).
    """
    model = whole(recipe)
    if stages is not None:
        return with_bottlenecks(recipe, split(model, stages=stages), example(recipe))
    cut = subject_of(recipe.name).place(recipe, model)
    found = split(model, at=[cut.middle, cut.last], all_tokens=cut.all_tokens)
    return with_bottlenecks(recipe, found, example(recipe))


def parts(recipe: Recipe) -> Parts:
    """Builds the model and cuts it; client and server each do, and keep their own."""
    first, middle, last = stages_of(recipe)
    return Parts(first, middle, last, loss)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Computes the loss of every recipe, in float32 whatever the outputs are."""
    return functional.cross_entropy(outputs.float(), targets)


_ADAMS: dict[str, type[torch.optim.Adam]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def optimizer(recipe: Recipe) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """Returns what makes an optimizer of some parameters, but for those that are frozen."""

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if recipe.optimizer != "sgd":
            return _ADAMS[recipe.optimizer](
                trained, lr=recipe.lr, betas=recipe.adam_betas, eps=recipe.adam_eps, weight_decay=recipe.weight_decay
            )
        return torch.optim.SGD(trained, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)

    return make


def data(recipe: Recipe, device: torch.device | str = "cpu") -> Data:
    """Loads or makes the samples.

    Args:
        recipe: what to train.
        device: where batches are made and augmented: that of the first stage (default: the CPU).

    Raises:
        ThinpipeError: they are not to be found; the message says what to put where.
        ImportError: they need a package that is not installed.
    """
    return subject_of(recipe.name).data(recipe).on(device)


def example(recipe: Recipe) -> Any:
    """Returns inputs of one row."""
    return subject_of(recipe.name).example(recipe)


def middle_example(recipe: Recipe) -> Any:
    """Returns what one row is when it reaches the middle."""
    first = parts(recipe).first.eval()
    with torch.no_grad(), precision_of(recipe):
        return first(example(recipe))
