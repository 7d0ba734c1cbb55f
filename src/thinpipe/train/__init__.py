"""Recipes, and what trains them: a client with its server, or one process alone."""

from thinpipe.train.parts import Parts, data, optimizer, parts
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.recipes import RECIPES, resolved

__all__ = ["RECIPES", "Parts", "Recipe", "RecipeError", "data", "optimizer", "parts", "resolved"]
