"""What a recipe trains: a model with the places where it may be cut, and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from thinpipe.train.data import Data
from thinpipe.train.recipe import Recipe, RecipeError


@dataclass(frozen=True)
class Cut:
    """Where a model is cut in three; the client has both ends.

    Args:
        middle: the layer that begins the server's part.
        last: the layer that begins the client's last part.
    """

    middle: str
    last: str


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What belongs to a recipe's name.

    Args:
        about: a line about it.
        defaults: the recipe, where nobody says otherwise.
        cuts: by name.
        model: builds the whole model as a row of named layers; its weights are drawn afterwards.
        example: makes inputs of one row.
        data: loads or makes the samples.
        sizes: the edges that an image may have.
    """

    about: str
    defaults: Recipe
    cuts: Mapping[str, Cut]
    model: Callable[[Recipe], nn.Sequential]
    example: Callable[[Recipe], Tensor]
    data: Callable[[Recipe], Data]
    sizes: range

    def verify(self, recipe: Recipe) -> Recipe:
        """Checks that a recipe can be trained, and returns it.

        Raises:
            RecipeError: it cannot.
        """
        if recipe.cut not in self.cuts:
            raise RecipeError(f"{recipe.name} has no cut {recipe.cut!r:.40}; it has {', '.join(self.cuts)}")
        if recipe.pixels not in self.sizes:
            allowed = f"{self.sizes[0]}" if len(self.sizes) == 1 else f"{self.sizes[0]} to {self.sizes[-1]}"
            raise RecipeError(f"images of {recipe.name} have {allowed} pixels a side, got {recipe.pixels}")
        return recipe
