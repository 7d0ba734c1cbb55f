"""Finds the folder of a run, and what is to be trained in it: anew, or as it was begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from thinpipe.extras import need
from thinpipe.train.log import Origin, RunError, RunFolder
from thinpipe.train.recipe import PERMISSIONS, Recipe
from thinpipe.train.recipes import resolved, subject_of
from thinpipe.train.settings import Settings
from thinpipe.train.way import Way

_MAY_CHANGE = ("connect", "key", "server", "bandwidth", "give_up", "compile", "every", "device", "devices")
"""Settings that a resumed run may have others of: they change where and how fast it runs, not what it computes."""

_FREE = ("epochs", *PERMISSIONS)
"""Fields of a recipe that a resumed run may have others of."""


def begin(
    name: str, fields: Mapping[str, Any], words: Mapping[str, Any], path: Path | None
) -> tuple[RunFolder, Origin]:
    """Finds a folder for a new run.

    Args:
        name: of the recipe.
        fields: what is different from its defaults.
        words: the settings that were given.
        path: of the folder (default: a new one in ``runs``).

    Raises:
        ThinpipeError: the folder has a run, there is no such recipe, value or setting, or packages are missing.
    """
    recipe, settings = resolved(name, fields), Settings(**words).verify()
    _verify_installed(recipe, settings)
    folder = RunFolder.fresh(name) if path is None else RunFolder(path)
    if folder.exists:
        raise RunError(f"{folder.path} has a run already; add --resume to go on with it, or choose another --run")
    return folder, Origin.now(recipe, settings)


def resume(
    name: str, fields: Mapping[str, Any], words: Mapping[str, Any], path: Path | None
) -> tuple[RunFolder, Origin]:
    """Finds a run to go on with, and checks that nothing is said that would make it another.

    Args:
        name: of the recipe.
        fields: values that were given again.
        words: settings that were given again.
        path: of the folder (default: the run of the recipe that was begun last).

    Raises:
        ThinpipeError: there is no such run, it was begun with other values, or packages are missing.
    """
    asked = resolved(name, fields).to_json()
    folder = RunFolder.newest(name) if path is None else RunFolder(path)
    origin = folder.origin()
    recipe, settings = origin.recipe, origin.settings
    if recipe.name != name:
        raise RunError(f"{folder.path} is a run of {recipe.name}, not of {name}")
    _verify_way(folder, settings, Settings.from_json(settings.to_json() | {"ranks": None} | dict(words)))
    before = recipe.to_json()
    _verify_same(before, {field: asked[field] for field in fields}, _FREE)
    _verify_same(settings.to_json(), words, _MAY_CHANGE)
    _verify_installed(recipe, settings)
    longer = {field: asked[field] for field in _FREE if field in fields}
    return folder, replace(
        origin,
        recipe=recipe.changed(longer),
        settings=Settings.from_json(settings.to_json() | dict(words)).verify(),
    )


def _verify_installed(recipe: Recipe, settings: Settings) -> None:
    """Names all packages that are missing at once, before anything is begun."""
    network = ("zmq",) if settings.way is Way.CONNECTED else ()
    lossless = ("zstandard",) if "|zstd" in f"{settings.codec} {settings.grad_codec}" else ()
    packages = subject_of(recipe.name).packages(recipe)
    need(f"thinpipe train {recipe.name}", "safetensors", *packages, *network, *lossless)


def _verify_way(folder: RunFolder, before: Settings, now: Settings) -> None:
    """Checks that a run is resumed in the way, and by as many processes, as it was begun."""
    if now.ranks != before.ranks:
        if before.ranks is None:
            raise RunError(f"{folder.path} was begun by one process; resume it without torchrun, or begin another run")
        raise RunError(
            f"{folder.path} was begun by {before.ranks} processes; resume it with torchrun --nproc-per-node "
            f"{before.ranks} -m thinpipe train ..."
        )
    if now.way is not before.way:
        how = "without a server" if now.way is Way.CONNECTED else f"as {before.way}"
        raise RunError(f"{folder.path} was begun {how}; begin another run for {now.way}")


def _verify_same(before: Mapping[str, Any], now: Mapping[str, Any], free: tuple[str, ...]) -> None:
    for option, value in now.items():
        if option not in free and value != before[option]:
            was = f"{before[option]}" if before[option] is not None else "not given"
            raise RunError(
                f"--{option.replace('_', '-')} was {was} when the run was begun, and is {value} now; leave it out "
                "to resume, or begin another run"
            )
