"""Offers of the server's owner, by the place of the function that makes them: ``name=path/to/file.py:factory``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thinpipe.check.target import UsageError, factory_of
from thinpipe.remote.offer import Offer
from thinpipe.train.recipe import RecipeError


def user_offers(texts: Sequence[str]) -> dict[str, Callable[[], Offer]]:
    """Imports the factories that the texts name; each is called once, to be sure that it works.

    Args:
        texts: as ``mine=package.module:factory`` or ``mine=path/to/file.py:factory``; the current directory is
            importable.

    Raises:
        RecipeError: a text names no factory, or it returns no ``Offer``.
    """
    found: dict[str, Callable[[], Offer]] = {}
    for text in texts:
        name, equals, place = text.partition("=")
        module, colon, factory = place.rpartition(":")
        if not (name and equals and module and colon and factory):
            raise RecipeError(f"{text!r} is no offer; write name=package.module:factory or name=file.py:factory")
        if name in found:
            raise RecipeError(f"two offers are called {name!r}; give each a name of its own")
        found[name] = _factory(place)
    return found


def _factory(place: str) -> Callable[[], Offer]:
    try:
        factory = factory_of(place)
        made = factory()
    except UsageError as error:
        raise RecipeError(str(error)) from error
    except Exception as error:
        raise RecipeError(f"{place} makes no offer: {type(error).__name__}: {error}") from error
    if not isinstance(made, Offer):
        raise RecipeError(f"{place} must return a thinpipe Offer, got {type(made).__name__}")
    return factory  # type: ignore[no-any-return]
