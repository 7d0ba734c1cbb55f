"""Codecs by cut, in one text: ``power:3/power:7`` is the first at the first cut and the second at the second.

A slash also stands before the size of a block, ``block:4/32``, and before passes, ``power:3/3/power:7/3``: what begins
with a letter is a codec of its own.
"""

from __future__ import annotations

import re

from thinpipe.codecs import codec
from thinpipe.train.recipe import RecipeError

_BETWEEN = re.compile(r"/(?=[a-z])")


def codecs_in(text: str) -> list[str]:
    """Takes a text apart: one codec for all cuts, or one for each.

    Raises:
        SpecError: one of them is no codec.
    """
    words = _BETWEEN.split(text)
    for word in words:
        codec(word)
    return words


def per_cut(text: str | None, cuts: int) -> str | dict[int, str | None] | None:
    """Finds the codec of each cut.

    Args:
        text: as it is in the settings; None for none.
        cuts: how many there are.

    Raises:
        RecipeError: it has several codecs, and not as many as there are cuts.
        SpecError: one of them is no codec.
    """
    words = [] if text is None else codecs_in(text)
    if len(words) < 2:
        return text
    if len(words) != cuts:
        raise RecipeError(
            f"{text!r:.100} has {len(words)} codecs, and there {'is one cut' if cuts == 1 else f'are {cuts} cuts'}; "
            "write one for all cuts, or one for each"
        )
    return dict(enumerate(words))
