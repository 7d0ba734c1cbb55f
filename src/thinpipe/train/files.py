"""The files that a model begins with: where they are, and a short name for what is in them.

A recipe names them by a path, or as they are called in a folder of data sets::

    DIR/weights/mobilenet_v2_torchvision_v1.safetensors      weights = "mobilenet_v2_torchvision_v1.safetensors"
    DIR/models/roberta-base/config.json, ...           model = "roberta-base"
    DIR/bottlenecks/fitted.safetensors                 bottleneck_file = "fitted.safetensors"

A server's files lie elsewhere than its client's. So that both begin with the same weights, a client says a digest of
its own, and the server looks for a file of that digest among those that it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from thinpipe.data.locate import VARIABLE, places
from thinpipe.train.recipe import Recipe, RecipeError

NONE = "none"
"""What ``weights`` and ``bottleneck_file`` say where there are none."""
TINY = "tiny"
"""The text encoder that needs no files."""

WEIGHTS, MODELS, BOTTLENECKS = "weights", "models", "bottlenecks"
"""The kinds of files, which are folders of a folder of data sets."""

_CALLED = {
    WEIGHTS: ("weights", "file"),
    MODELS: ("an encoder", "folder"),
    BOTTLENECKS: ("bottlenecks", "file"),
}


def weights_file(recipe: Recipe) -> Path | None:
    """Finds the file of weights that a recipe begins with; None if it begins with random ones.

    Raises:
        RecipeError: it is not there.
    """
    if recipe.weights in ("", NONE):
        return None
    here, *others = _candidates(recipe.weights, WEIGHTS, recipe.data_dir)
    found = next((path for path in (here, *others) if path.is_file()), None)
    if found is None:
        raise RecipeError(
            f"{recipe.name} begins with weights, and there is no file {recipe.weights!r:.200}; put it at {others[0]}, "
            f"or say where it is: --set weights=FILE. With --set weights={NONE} it begins with random ones"
        )
    return found


def bottleneck_file(recipe: Recipe) -> Path | None:
    """Finds the file of weights that a recipe's bottlenecks begin with; None if it names none.

    Raises:
        RecipeError: it is not there.
    """
    if recipe.bottleneck_file in ("", NONE):
        return None
    here, *others = _candidates(recipe.bottleneck_file, BOTTLENECKS, recipe.data_dir)
    found = next((path for path in (here, *others) if path.is_file()), None)
    if found is None:
        raise RecipeError(
            f"there is no file {recipe.bottleneck_file!r:.200} of bottlenecks; put it at {others[0]}, or say where it "
            "is: --set bottleneck_file=FILE. A run that fits its bottlenecks leaves one in its folder"
        )
    return found


def encoder_folder(recipe: Recipe) -> Path:
    """Finds the folder of the encoder that a recipe trains.

    Raises:
        RecipeError: it is not there.
    """
    here, *others = _candidates(recipe.model, MODELS, recipe.data_dir)
    found = next((path for path in (here, *others) if (path / "config.json").is_file()), None)
    if found is None:
        inside = sorted(here.rglob("config.json"), key=lambda path: len(path.parts)) if here.is_dir() else []
        if inside:
            raise RecipeError(f"{here} has no config.json; did you mean --set model={inside[0].parent}?")
        raise RecipeError(
            f"there is no encoder {recipe.model!r:.200}, which would be a folder with a config.json. Get one, as by: "
            f"hf download FacebookAI/roberta-base --local-dir {others[0]}; or say where it is: --set model=DIR. "
            f"--set model={TINY} needs no files, and learns little"
        )
    return found


def _candidates(name: str, kind: str, data_dir: str) -> list[Path]:
    given = (Path(data_dir),) if data_dir else ()
    around = dict.fromkeys((*given, *places()))
    return [Path(name).expanduser(), *(place / kind / name for place in around)]


def digest(path: Path) -> str:
    """Makes a short name of what is in a file, or of an encoder's settings and weights in a folder."""
    files = [path] if path.is_file() else [path / "config.json", *sorted(path.glob("*.safetensors"))]
    states = [(file, file.stat()) for file in files]
    return _digest(tuple((file, state.st_size, state.st_mtime_ns) for file, state in states))


@lru_cache(maxsize=64)
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    found = hashlib.sha256()
    for file, size, _ in files:
        found.update(size.to_bytes(8, "little"))
        with file.open("rb") as opened:
            while piece := opened.read(1 << 20):
                found.update(piece)
    return found.hexdigest()[:16]


def found_by_digest(wanted: str, kind: str, given: Sequence[Path] = ()) -> Path:
    """Finds a file of weights or of bottlenecks, or the folder of an encoder, by what is in it.

    Args:
        wanted: its digest.
        kind: ``weights``, ``models`` or ``bottlenecks``.
        given: files and folders that are looked at first; then those in the folders of data sets are.

    Raises:
        RecipeError: there is none; the message says what to do about it.
    """
    there = [path for path in (*given, *_kept(kind)) if _is(path, kind)]
    for path in there:
        if digest(path) == wanted:
            return path
    what, thing = _CALLED[kind]
    known = ", ".join(f"{path.name} ({digest(path)})" for path in there) or "none"
    raise RecipeError(
        f"the client begins with {what} of digest {wanted!r:.20}, which this server has not; its owner can put the "
        f"same {thing} into {places()[0] / kind} (or another folder, by {VARIABLE}). It has {known}"
    )


def _kept(kind: str) -> Iterator[Path]:
    for place in places():
        yield from sorted((place / kind).glob("*"))


def _is(path: Path, kind: str) -> bool:
    if kind == MODELS:
        return (path / "config.json").is_file()
    return path.suffix == ".safetensors" and path.is_file()
