"""What a user is told of a run that stopped because a number was not finite: what may help, and what is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from thinpipe.checkpoint import latest
from thinpipe.train.log import Origin
from thinpipe.train.recipe import Recipe
from thinpipe.train.settings import Settings
from thinpipe.train.way import Way


def advice(origin: Origin, states: Path) -> str:
    """Says what may help a run that stopped, and where its last good weights are.

    Args:
        origin: of the run.
        states: the folder of its saved states.
    """
    settings = origin.settings
    codecs = f"codecs {settings.codec or 'none'} and, for gradients, {settings.grad_codec or 'none'}"
    said = "" if settings.way in (Way.ONE_DEVICE, Way.DATA_PARALLEL) else f"{codecs}\n"
    tries = "".join(f"  {each}\n" for each in _tries(origin.recipe, settings))
    return (
        f"{said}What may help, in another run:\n{tries}{_kept(states)}; resumed as it is, the run would stop at the "
        "same place. With --set on_nan=continue it goes on all the same"
    )


def _tries(recipe: Recipe, settings: Settings) -> Iterator[str]:
    yield f"a lower learning rate: --lr {recipe.lr / 10:g}"
    if not (recipe.warmup or recipe.warmup_steps):
        yield "a learning rate that grows from 0 in the first tenth of the steps: --set warmup=0.1"
    if not recipe.clip:
        yield "gradients of a limited norm: --set clip=1"
    if recipe.precision != "float32":
        yield "float32 instead of bfloat16: --set precision=float32"
    if settings.grad_codec is not None:
        yield "more bits for gradients, or all of them: leave out --grad-codec"
    if settings.codec is not None:
        yield "more bits for activations, or all of them: leave out --codec"


def _kept(states: Path) -> str:
    found = latest(states)
    if found is not None:
        return f"The last good weights are in {found}"
    saved = states.is_dir() and any(states.iterdir())
    return f"The last good weights are in {states}" if saved else "No weights were saved before that step"
