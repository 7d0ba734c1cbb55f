"""What a recipe trains: a model with the places where it may be cut, and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from thinpipe.suggest import instead_of
from thinpipe.train.data import Data
from thinpipe.train.recipe import Recipe, RecipeError, field_names

_ALWAYS = frozenset(
    (
        *("name", "cut", "batch", "epochs", "lr", "lr_schedule", "warmup", "warmup_steps", "optimizer"),
        *("momentum", "weight_decay", "adam_betas", "adam_eps", "clip", "precision", "seed", "chunks"),
        *("last_batch", "batch_norm"),
        *("bottleneck", "bottleneck_fit", "bottleneck_file", "on_nan"),
    )
)
"""The fields that every recipe has a use for."""


@dataclass(frozen=True)
class Cut:
    """Where a model is cut in three; the client has both ends.

    Args:
        middle: the layer that begins the server's part.
        last: the layer that begins the client's last part.
        all_tokens: whether a text's head gets all tokens, though it reads the first alone (default: that one).
    """

    middle: str
    last: str
    all_tokens: bool = False


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What belongs to a recipe's name.

    Args:
        about: a line about it.
        defaults: the recipe, where nobody says otherwise.
        cuts: the names of the places where its model, that of the defaults, can be cut.
        place: finds the place of the recipe's cut in its model.
        model: builds the whole model, with its first weights.
        example: makes inputs of one row.
        data: loads or makes the samples.
        uses: the fields that it has a use for, beside those that every recipe has.
        sizes: the edges that an image may have (default: it has no images).
        networks: what ``model`` can be, with the names of the places where each can be cut (default: anything, and
            ``cuts`` are those of all).
        datasets: what ``dataset`` can be (default: nothing that has a name).
        packages: the modules that a recipe imports beside those of every training (default: none).
        matthews: whether Matthews' correlation is told beside the accuracy (default: it is not).
    """

    about: str
    defaults: Recipe
    cuts: tuple[str, ...]
    place: Callable[[Recipe, nn.Module], Cut]
    model: Callable[[Recipe], nn.Module]
    example: Callable[[Recipe], Any]
    data: Callable[[Recipe], Data]
    uses: frozenset[str] = frozenset()
    sizes: range = range(1)
    networks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    datasets: tuple[str, ...] = ("",)
    packages: Callable[[Recipe], tuple[str, ...]] = lambda _: ()
    matthews: bool = False

    def cuts_of(self, model: str) -> tuple[str, ...]:
        """Lists the places where one of the models that it can have can be cut."""
        return self.networks.get(model, self.cuts)

    def verify(self, recipe: Recipe) -> Recipe:
        """Checks that a recipe can be trained, and returns it.

        Raises:
            RecipeError: it cannot.
        """
        for what, names in (("model", self.networks), ("dataset", self.datasets)):
            if names and getattr(recipe, what) not in names and what in self.uses:
                said = getattr(recipe, what)
                raise RecipeError(f"{recipe.name} has no {what} {said!r:.40}; {instead_of(said, names)}")
        whose, cuts = recipe.model if recipe.model in self.networks else recipe.name, self.cuts_of(recipe.model)
        if recipe.cut not in cuts:
            raise RecipeError(f"{whose} has no cut {recipe.cut!r:.40}; {instead_of(recipe.cut, cuts)}")
        for name in field_names():
            if name not in _ALWAYS | self.uses and getattr(recipe, name) != getattr(self.defaults, name):
                raise RecipeError(f"{recipe.name} has no use for {name}; leave it at {getattr(self.defaults, name)!r}")
        if recipe.pixels not in self.sizes:
            allowed = f"{self.sizes[0]}" if len(self.sizes) == 1 else f"{self.sizes[0]} to {self.sizes[-1]}"
            raise RecipeError(f"images of {recipe.name} have {allowed} pixels a side, got {recipe.pixels}")
        return recipe
