"""The recipes by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from thinpipe.train.digits import DIGITS
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.subject import Subject
from thinpipe.train.two_machines import TWO_MACHINES

RECIPES: dict[str, Subject] = {subject.defaults.name: subject for subject in (DIGITS, TWO_MACHINES)}


def subject_of(name: str) -> Subject:
    """Finds what a recipe's name stands for.

    Raises:
        RecipeError: nothing; the nearest name is suggested.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(RECIPES)}"
        raise RecipeError(f"no recipe is called {name!r:.40}; {hint}")
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
