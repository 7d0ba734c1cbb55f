"""Recipes in files: what is to be different from a recipe, in TOML.

::

    name = "cifar10-finetune"     # may be left out
    epochs = 10
    lr = 0.02
    weights = "mobilenet_v2_torchvision_v1.safetensors"
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from thinpipe.suggest import instead_of
from thinpipe.train.recipe import Recipe, RecipeError, field_names


def from_toml(path: Path | str, name: str | None = None) -> dict[str, Any]:
    """Reads what a file says of a recipe, as changes for ``resolved``.

    Args:
        path: of the file.
        name: the recipe that it has to be about, if it says one (default: any, and then it must be said).

    Returns:
        The values by field. The recipe's name is among them only if the caller has not said which it is.

    Raises:
        RecipeError: there is no such file, it is no TOML, or it is about something else.
    """
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecipeError(f"{path} cannot be read as a recipe: {reason}; it has lines as: epochs = 10") from error
    for field in found:
        if field not in field_names():
            raise RecipeError(f"{path}: a recipe has no field {field!r:.40}; {instead_of(field, field_names())}")
    said = found.get("name", name)
    if said is None:
        raise RecipeError(f'{path} does not say which recipe it changes; add a line as: name = "digits"')
    if name is None:
        return found
    if said != name:
        raise RecipeError(f"{path} is about the recipe {said!r:.40}, not about {name}")
    return {field: value for field, value in found.items() if field != "name"}


def to_toml(recipe: Recipe) -> str:
    """Writes a recipe with all its fields, as ``from_toml`` reads it."""
    # The texts, numbers and lists of numbers that a recipe has are the same in JSON and in TOML.
    return "".join(f"{field} = {json.dumps(value)}\n" for field, value in recipe.to_json().items())
