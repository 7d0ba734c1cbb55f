"""The names under which a server lends the middles of recipes: ``digits?lr=0.05&seed=3``.

Both sides build the model from the recipe, each its part. A name says all that the middle depends on and that is not as
the recipe has it anyway, so that a server needs no settings of its own and cannot have others than its client.

Files are named by what is in them, ``cifar10-finetune?weights=digest:0a1b...``: both sides begin with the same weights,
and nobody's paths are told, let alone opened for a stranger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from torch import Tensor

from thinpipe.remote.offer import Offer
from thinpipe.train.files import (
    BOTTLENECKS,
    MODELS,
    NONE,
    TINY,
    WEIGHTS,
    bottleneck_file,
    digest,
    encoder_folder,
    found_by_digest,
    weights_file,
)
from thinpipe.train.parts import middle_example, optimizer, parts
from thinpipe.train.precision import precise
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.recipes import RECIPES, resolved, subject_of

MIDDLE = (
    "cut",
    *("optimizer", "lr", "momentum", "weight_decay", "adam_betas", "adam_eps", "precision", "layout", "seed"),
    *("model", "weights", "pool", "dropout", "lora", "lora_alpha", "pixels", "max_length"),
    *("bottleneck", "bottleneck_file"),
)
"""The fields that a server's part depends on; the others are the client's alone."""

_DIGEST = "digest:"
"""What stands before the digest of a file, where a field would have its path: a server has files of its own."""
_LONGEST = 400


class OfferError(RecipeError, KeyError):
    """A name under which a server lends nothing; the message says why."""

    def __str__(self) -> str:
        # A KeyError's is a quotation of its argument.
        return str(self.args[0]) if self.args else ""


def offer_name(recipe: Recipe) -> str:
    """Writes the name under which a client asks for the middle of its recipe."""
    defaults = subject_of(recipe.name).defaults
    changes = {key: getattr(recipe, key) for key in MIDDLE if getattr(recipe, key) != getattr(defaults, key)}
    changes = {key: ",".join(map(str, value)) if isinstance(value, tuple) else value for key, value in changes.items()}
    changes |= {key: f"{_DIGEST}{digest(path)}" for key, path in _files(recipe).items()}
    return f"{recipe.name}?{urlencode(changes, safe=':,/')}" if changes else recipe.name


def _files(recipe: Recipe) -> dict[str, Path]:
    """Finds the files that a recipe's model begins with, by the fields that name them.

    Raises:
        RecipeError: one is not there.
    """
    subject = subject_of(recipe.name)
    found: dict[str, Path] = {}
    weights = weights_file(recipe) if "weights" in subject.uses else None
    if weights is not None:
        found["weights"] = weights
    if "model" in subject.uses and not subject.networks and recipe.model != TINY:
        found["model"] = encoder_folder(recipe)
    bottlenecks = bottleneck_file(recipe)
    if bottlenecks is not None:
        found["bottleneck_file"] = bottlenecks
    return found


def read_offer(text: str, files: Sequence[Path] = ()) -> Recipe:
    """Reads what ``offer_name`` wrote; fields that are the client's alone are the recipe's.

    Args:
        text: the name.
        files: this side's files of weights and bottlenecks and folders of encoders, beside those in the folders of
            data sets (default: none).

    Raises:
        RecipeError: it names no recipe, a value that it cannot have, or a file that is not here.
    """
    name, mark, query = text[:_LONGEST].partition("?")
    try:
        if mark and not query:
            raise ValueError
        pairs = (
            parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=len(MIDDLE)) if mark else []
        )
    except ValueError as error:
        raise RecipeError(f"{text!r:.100} is no recipe; write name?field=value&field=value") from error
    changes = dict(pairs)
    if len(text) > _LONGEST or len(changes) < len(pairs):
        raise RecipeError(f"{text!r:.100} says a field twice, or too much")
    for field in changes:
        if field not in MIDDLE:
            raise RecipeError(f"{field!r:.40} does not concern the server; the fields that do are {', '.join(MIDDLE)}")
    recipe = resolved(name, changes | _own_files(name, changes, files))
    _files(recipe)
    return recipe


def _own_files(name: str, changes: Mapping[str, str], files: Sequence[Path]) -> dict[str, str]:
    """Finds this side's files for the digests that a name has."""
    found: dict[str, str] = {}
    kinds = {
        "weights": (WEIGHTS, ("", NONE)),
        "model": (MODELS, (*subject_of(name).networks, TINY)),
        "bottleneck_file": (BOTTLENECKS, ("", NONE)),
    }
    for field, (kind, plain) in kinds.items():
        said = changes.get(field)
        if said is not None and said.startswith(_DIGEST):
            found[field] = str(found_by_digest(said.removeprefix(_DIGEST), kind, files))
        elif said is not None and said not in plain:
            # Never a path: what it leads to here is no matter of a client's.
            raise RecipeError(f"{field} is named by the digest of its files, as {_DIGEST}0a1b2c3d, got {said!r:.40}")
    return found


def recipe_offer(recipe: Recipe) -> Offer:
    """Makes an offer of a recipe's middle; every session gets the same first weights, in a module of its own."""
    # How many classes the client has is known to its data alone, and to nothing but its own last layer.
    own = replace(recipe, classes=recipe.classes or 1)
    example = middle_example(own)
    # Shapes are compared without autocast, where nothing is bfloat16 yet; and as a list of tensors, from which nobody
    # can tell a dictionary of one from a tensor alone.
    comparable = isinstance(example, Tensor) and own.precision == "float32"
    return Offer(
        make=lambda: precise(parts(own).middle, own),
        optimizer=optimizer(own),
        example=example if comparable else None,
    )


class Offers(Mapping[str, Offer]):
    """What a server lends: recipes, with any values of their fields, and modules of its owner.

    It lists plain names, and finds those with values, too.

    Args:
        recipes: names of recipes (default: all).
        own: offers of the server's owner by name, each made when it is first asked for (default: none).
        files: files of weights and bottlenecks and folders of encoders that recipes may begin with, beside those in
            the folders of data sets (default: none).

    Raises:
        RecipeError: there is no such recipe, or an owner's offer has the name of one.
    """

    def __init__(
        self,
        recipes: Sequence[str] | None = None,
        own: Mapping[str, Callable[[], Offer]] | None = None,
        files: Sequence[Path] = (),
    ) -> None:
        self._recipes = tuple(RECIPES if recipes is None else recipes)
        self._own, self._files = dict(own or {}), tuple(files)
        for name in self._recipes:
            subject_of(name)
        for name in self._own:
            if name in self._recipes or "?" in name:
                raise RecipeError(f"{name!r} cannot be the name of an offer of yours; choose another")

    def __getitem__(self, name: str) -> Offer:
        """Makes the offer of a name.

        Raises:
            OfferError: there is none; a KeyError that says why.
        """
        if name in self._own:
            return self._own[name]()
        try:
            return recipe_offer(self._recipe(name))
        except (RecipeError, ImportError) as error:
            raise OfferError(str(error)) from error

    def __contains__(self, name: object) -> bool:
        # Without this a Mapping would build a model to answer.
        try:
            return isinstance(name, str) and (name in self._own or bool(self._recipe(name)))
        except OfferError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter((*self._recipes, *self._own))

    def __len__(self) -> int:
        return len(self._recipes) + len(self._own)

    def _recipe(self, name: str) -> Recipe:
        if name.partition("?")[0] not in self._recipes:
            raise OfferError(f"nothing is offered as {name!r:.100}; there are {', '.join(self) or 'no offers'}")
        try:
            return read_offer(name, self._files)
        except RecipeError as error:
            raise OfferError(str(error)) from error
