"""Stochastic rounding: values are rounded up or down at random, so that their mean is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thinpipe.codecs.coder import Coder


class MayThrowDice(Coder):
    """A coder that rounds to the nearest value, or throws dice.

    The dice are thrown anew for every tensor, in the same sequence in every run, and how often is remembered.

    Args:
        stochastic: whether it throws dice.
    """

    def __init__(self, *, stochastic: bool) -> None:
        self._stochastic = stochastic
        self._throws = 0

    @property
    def option(self) -> str:
        """What its text ends in."""
        return ",sr" * self._stochastic

    def next_seed(self) -> int | None:
        """Returns the seed for the next tensor's dice; None if there are none."""
        if not self._stochastic:
            return None
        self._throws += 1
        return (self._throws * 0x632BE5AB) & 0x7FFFFFFF

    def state_dict(self) -> dict[str, Any]:
        """Returns how often dice were thrown."""
        return {"throws": self._throws} if self._stochastic else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where another was."""
        if self._stochastic:
            self._throws = int(state["throws"])
        else:
            super().load_state_dict(state)
