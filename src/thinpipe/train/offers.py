"""The names under which a server lends the middles of recipes: ``digits?lr=0.05&seed=3``.

Both sides build the model from the recipe, each its part. A name says all that the middle depends on and that is not as
the recipe has it anyway, so that a server needs no settings of its own and cannot have others than its client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import parse_qsl, urlencode

from thinpipe.remote.offer import Offer
from thinpipe.train.parts import middle_example, optimizer, parts
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.recipes import RECIPES, resolved, subject_of

MIDDLE = ("cut", "lr", "momentum", "weight_decay", "seed", "pixels")
"""The fields that a server's part depends on; the others are the client's alone."""

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
    return f"{recipe.name}?{urlencode(changes)}" if changes else recipe.name


def read_offer(text: str) -> Recipe:
    """Reads what ``offer_name`` wrote; fields that are the client's alone are the recipe's.

    Raises:
        RecipeError: it names no recipe, or a value that it cannot have.
    """
    name, mark, query = text[:_LONGEST].partition("?")
    try:
        if mark and not query:
            raise ValueError
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=16) if mark else []
    except ValueError as error:
        raise RecipeError(f"{text!r:.100} is no recipe; write name?field=value&field=value") from error
    changes = dict(pairs)
    if len(text) > _LONGEST or len(changes) < len(pairs):
        raise RecipeError(f"{text!r:.100} says a field twice, or too much")
    for field in changes:
        if field not in MIDDLE:
            raise RecipeError(f"{field!r:.40} is no matter of the server's; it is told {', '.join(MIDDLE)}")
    return resolved(name, changes)


def recipe_offer(recipe: Recipe) -> Offer:
    """Makes an offer of a recipe's middle; every session gets the same first weights, in a module of its own."""
    return Offer(make=lambda: parts(recipe).middle, optimizer=optimizer(recipe), example=middle_example(recipe))


class Offers(Mapping[str, Offer]):
    """What a server lends: recipes, with any values of their fields, and modules of its owner.

    It lists plain names, and finds those with values, too.

    Args:
        recipes: names of recipes (default: all).
        own: offers of the server's owner by name, each made when it is first asked for (default: none).

    Raises:
        RecipeError: there is no such recipe, or an owner's offer has the name of one.
    """

    def __init__(
        self, recipes: Sequence[str] | None = None, own: Mapping[str, Callable[[], Offer]] | None = None
    ) -> None:
        self._recipes = tuple(RECIPES if recipes is None else recipes)
        self._own = dict(own or {})
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
        return self._own[name]() if name in self._own else recipe_offer(self._recipe(name))

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
            return read_offer(name)
        except RecipeError as error:
            raise OfferError(str(error)) from error
