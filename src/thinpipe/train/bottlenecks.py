"""A recipe's bottlenecks: put at the cuts of its model, and begun with the weights of a file or of a fit.

::

    neither          what the text, the cut and the seed give                   anywhere
    bottleneck_fit   principal components of the first batches' activations     where samples and the whole model are
    bottleneck_file  what another run's fit has left in its folder              anywhere
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from thinpipe.bottleneck import BottleneckError, insert, load_bottlenecks
from thinpipe.bottleneck.spec import LinearSpec, parse_cuts
from thinpipe.extras import need
from thinpipe.stages.parts import Split
from thinpipe.train.files import bottleneck_file
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.way import Way

FILE = "bottleneck.safetensors"
"""What a fit has found, in the folder of its run."""


def has_bottlenecks(recipe: Recipe) -> bool:
    """Tells whether there are any."""
    return any(spec is not None for spec in parse_cuts(recipe.bottleneck))


def is_fitted(recipe: Recipe) -> bool:
    """Tells whether bottlenecks are fitted before the first step."""
    return has_bottlenecks(recipe) and recipe.bottleneck_fit > 0 and bottleneck_file(recipe) is None


def verify_bottlenecks(recipe: Recipe, way: Way) -> None:
    """Checks that a recipe's bottlenecks can be trained in a way.

    Raises:
        RecipeError: they cannot; the message says what can be done.
    """
    if not has_bottlenecks(recipe):
        if bottleneck_file(recipe) is not None:
            raise RecipeError("bottleneck_file has the weights of bottlenecks, and there are none; add --bottleneck")
        return
    text = recipe.bottleneck
    if way in (Way.ONE_DEVICE, Way.DATA_PARALLEL):
        instead = "add --stages 3" if way is Way.ONE_DEVICE else "use --stages 3 instead of --data-parallel"
        raise RecipeError(f"{text} makes small what crosses a cut, and {way} has none; {instead}, or leave it out")
    linear = [spec for spec in parse_cuts(text) if isinstance(spec, LinearSpec)]
    over_tokens = any(each.over == "sequence" for spec in linear for each in spec.sets)
    if over_tokens and recipe.max_length and recipe.padding == "batch":
        raise RecipeError(f"{text} is for texts of one length, and batches differ in it; add --set padding=full")
    if way is not Way.CONNECTED:
        return
    if any(spec.decay is not None for spec in linear):
        raise RecipeError(f"{text}: with a server a rank stays as it is; leave out decay=, or train with --stages 3")
    if is_fitted(recipe):
        raise RecipeError(
            f"{text} is fitted to samples, which a server never sees. Fit it here, by this command with --stages 3 "
            f"--epochs 0 --run DIR instead of --connect, and give both sides what it leaves: --set "
            f"bottleneck_file=DIR/{FILE}, and thinpipe serve --file DIR/{FILE}. Or begin without a fit: --set "
            "bottleneck_fit=0"
        )


def with_bottlenecks(recipe: Recipe, stages: Split, example: Any) -> Split:
    """Puts bottlenecks at the cuts of a model, with the weights that they have before a fit.

    Args:
        recipe: what to train.
        stages: its model, cut.
        example: inputs of one row.

    Returns:
        The stages with bottlenecks; as they were, if there are none.

    Raises:
        RecipeError: they do not fit the cuts, or the file is not there or of others.
    """
    if not has_bottlenecks(recipe):
        return stages
    try:
        found = insert(stages, _by_cut(recipe.bottleneck, len(stages) - 1), example=example, seed=recipe.seed)
        path = bottleneck_file(recipe)
        if path is not None:
            _load(path, found, recipe.bottleneck)
    except BottleneckError as error:
        raise RecipeError(str(error)) from error
    return found


def _by_cut(text: str, cuts: int) -> dict[int, str]:
    """Finds the text of each cut: one is for all of them."""
    specs = parse_cuts(text)
    if len(specs) not in (1, cuts):
        there = "is one cut" if cuts == 1 else f"are {cuts} cuts"
        raise RecipeError(
            f"{text!r:.100} has {len(specs)} bottlenecks, and there {there}; write one for all cuts, or one for each"
        )
    each = specs * cuts if len(specs) == 1 else specs
    return {cut: str(spec) for cut, spec in enumerate(each) if spec is not None}


def _load(path: Path, stages: Sequence[nn.Module], text: str) -> None:
    need("bottlenecks in files", "safetensors")
    from safetensors.torch import load_file

    try:
        state = load_file(path)
    except Exception as error:
        raise RecipeError(f"{path} cannot be read as safetensors: {error}") from error
    try:
        load_bottlenecks(stages, state)
    except (RuntimeError, BottleneckError) as error:
        raise RecipeError(f"the weights of {path} do not fit {text}: {error}") from error
