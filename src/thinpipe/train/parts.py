"""What is made from a recipe: the three parts of its model, its optimizer, its data."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinpipe.train.data import Data
from thinpipe.train.recipe import Recipe
from thinpipe.train.recipes import subject_of
from thinpipe.train.weights import built


@dataclass(frozen=True)
class Parts:
    """A model in three parts, each with the names of the whole.

    Args:
        first: the client's, which takes the inputs.
        middle: the server's.
        last: the client's, which gives the outputs.
        loss_fn: of outputs and targets, the mean over rows.
    """

    first: nn.Sequential
    middle: nn.Sequential
    last: nn.Sequential
    loss_fn: Callable[[Tensor, Tensor], Tensor]


def whole(recipe: Recipe) -> nn.Sequential:
    """Builds the whole model; its weights depend on the recipe's name and seed alone."""
    subject = subject_of(recipe.name)
    return built(lambda: subject.model(recipe), recipe.seed)


def parts(recipe: Recipe) -> Parts:
    """Builds the model and cuts it; client and server each do, and keep their own."""
    cut = subject_of(recipe.name).cuts[recipe.cut]
    model = whole(recipe)
    layers = list(model.named_children())
    names = [name for name, _ in layers]
    middle, last = names.index(cut.middle), names.index(cut.last)
    first, rest = nn.Sequential(OrderedDict(layers[:middle])), nn.Sequential(OrderedDict(layers[last:]))
    return Parts(first, nn.Sequential(OrderedDict(layers[middle:last])), rest, functional.cross_entropy)


def optimizer(recipe: Recipe) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """Returns what makes an optimizer of some parameters."""

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)

    return make


def data(recipe: Recipe) -> Data:
    """Loads or makes the samples.

    Raises:
        ImportError: they come with a package that is not installed.
    """
    return subject_of(recipe.name).data(recipe)


def example(recipe: Recipe) -> Tensor:
    """Returns inputs of one row."""
    return subject_of(recipe.name).example(recipe)


def middle_example(recipe: Recipe) -> Tensor:
    """Returns what one row is when it reaches the middle."""
    first = parts(recipe).first.eval()
    with torch.no_grad():
        output: Tensor = first(example(recipe))
    return output
