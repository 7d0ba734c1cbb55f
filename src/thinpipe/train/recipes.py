"""The recipes by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thinpipe.suggest import instead_of
from thinpipe.train.digits import DIGITS
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.subject import Subject
from thinpipe.train.text import TEXT
from thinpipe.train.two_machines import TWO_MACHINES
from thinpipe.train.vision import VISION

RECIPES: dict[str, Subject] = {subject.defaults.name: subject for subject in (DIGITS, TWO_MACHINES, *VISION, *TEXT)}


def subject_of(name: str) -> Subject:
    """Finds what a recipe's name stands for.

    Raises:
        RecipeError: nothing; the nearest name is suggested.
    """
    if name not in RECIPES:
        raise RecipeError(f"no recipe is called {name!r:.40}; {instead_of(name, RECIPES)}")
    return RECIPES[name]


def resolved(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Makes a recipe of its name and what is to be different from its defaults.

    Args:
        name: of the recipe.
        changes: values by field; texts are read as the field's type (default: none).

    Raises:
        RecipeError: there is no such recipe, field or value.
    """
    subject = subject_of(name)
    return subject.verify(subject.defaults.changed(changes or {}))
