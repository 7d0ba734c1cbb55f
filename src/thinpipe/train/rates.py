r"""The learning rate of a step: a function of the recipe and the step's number, so that a resumed run has the same.

::

    lr |      ____                 constant
       |     /    \__              cosine: slow, fast, slow
       |    /        \__           polynomial: a straight line
       |   /            \__
       |__/________________\___
          warm-up            total

Epipe moved its rate once an epoch and began at zero, so that their first epoch changed nothing but the
statistics of BatchNorm. Here every step has its own, and the first one of a warm-up of ``w`` steps has ``lr / w``.
"""

from __future__ import annotations

import math

from thinpipe.train.recipe import Recipe


def warmup_steps(recipe: Recipe, total: int, steps_per_epoch: int) -> int:
    """Tells how many steps the rate grows: as many as the recipe says, or a share of all steps, or those of epochs."""
    share = recipe.warmup * (total if recipe.warmup < 1 else steps_per_epoch)
    return min(total, recipe.warmup_steps or round(share))


def lr_at(recipe: Recipe, step: int, total: int, steps_per_epoch: int) -> float:
    """Computes the learning rate of a step.

    Args:
        recipe: what is trained.
        step: its number, from 0 over all epochs.
        total: the number of all steps.
        steps_per_epoch: how many of them an epoch has.
    """
    warm = warmup_steps(recipe, total, steps_per_epoch)
    if step < warm:
        return recipe.lr * ((step + 1) / warm)
    # A step after the last one has no rate of its own; nobody takes it.
    passed = min(1.0, (step - warm) / max(1, total - warm))
    if recipe.lr_schedule == "cosine":
        return recipe.lr * (1 + math.cos(math.pi * passed)) / 2
    if recipe.lr_schedule == "polynomial":
        return recipe.lr * (1 - passed)
    return recipe.lr
