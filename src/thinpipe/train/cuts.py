"""Where a recipe's model is cut into stages, for threads or ranks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from thinpipe.cutting import split
from thinpipe.errors import ThinpipeError
from thinpipe.stages.parts import Split
from thinpipe.suggest import instead_of
from thinpipe.train.bottlenecks import with_bottlenecks
from thinpipe.train.parts import example, stages_of, whole
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.settings import Settings

_U = 3
"""Stages of a model that is cut as for a client and a server: both ends, and the middle."""


def cut_model(recipe: Recipe, settings: Settings) -> Split:
    """Builds the model and cuts it as the settings say; without a word from them where the recipe does.

    Raises:
        RecipeError: cuts, stages, map and ranks do not fit together, or there is no such layer.
    """
    count = stage_count(settings)
    try:
        if settings.cuts is not None:
            model = whole(recipe)
            return with_bottlenecks(recipe, split(model, at=_named(model, settings.cuts)), example(recipe))
        return stages_of(recipe, None if count == _U else count)
    except ThinpipeError as error:
        raise RecipeError(str(error)) from error


def stage_count(settings: Settings) -> int:
    """Tells how many stages there are, from whatever says it.

    Raises:
        RecipeError: two settings say different numbers.
    """
    said: dict[str, int] = {}
    if settings.stages is not None:
        said["--stages"] = settings.stages
    if settings.cuts is not None:
        said["--cuts"] = len(settings.cuts.split(",")) + 1
    if settings.workers is not None:
        said["--map"] = len(settings.workers)
    if not said:
        return settings.team
    if len(set(said.values())) > 1:
        texts = " and ".join(f"{option} says {number}" for option, number in said.items())
        raise RecipeError(f"how many stages? {texts}; leave one of them out")
    return next(iter(said.values()))


def _named(model: nn.Module, text: str) -> list[str]:
    """Reads names and numbers of layers."""
    layers = [name for name, _ in model.named_children()]
    known = layers if isinstance(model, nn.Sequential) else [name for name, _ in model.named_modules() if name]
    return [_name(word.strip(), layers, known) for word in text.split(",")]


def _name(word: str, layers: Sequence[str], known: Sequence[str]) -> str:
    # A name wins: layers of a plain nn.Sequential are called by their numbers anyway.
    if word in known:
        return word
    if word.isdecimal():
        if not 0 < int(word) < len(layers):
            raise RecipeError(f"--cuts: a stage begins at one of the layers 1 to {len(layers) - 1}, got {word}")
        return layers[int(word)]
    raise RecipeError(f"--cuts: there is no layer {word!r:.60}; {instead_of(word, known)}")
