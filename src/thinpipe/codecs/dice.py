"""The dice of stochastic rounding, which are thrown anew for every tensor and can be saved in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Dice:
    """Gives every tensor a seed of its own, the same sequence in every run."""

    def __init__(self) -> None:
        self.throws = 0

    def throw(self) -> int:
        """Returns the next seed."""
        self.throws += 1
        return (self.throws * 0x632BE5AB) & 0x7FFFFFFF

    def state_dict(self) -> dict[str, Any]:
        """Returns how often they were thrown."""
        return {"throws": self.throws}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where others were."""
        self.throws = int(state["throws"])
