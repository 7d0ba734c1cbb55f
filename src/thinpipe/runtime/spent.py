"""Where the time of a stage's thread goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Spent:
    """Seconds that a stage's thread has spent so far, by the clock on the wall.

    Args:
        computed: going forward and backward.
        encode: packing what it sent.
        decode: unpacking what came.
        waited: for other stages: for what had not come yet, and at the end until all were through.
    """

    computed: float = 0.0
    encode: float = 0.0
    decode: float = 0.0
    waited: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.computed + self.encode + self.decode + self.waited

    def since(self, before: Spent) -> Spent:
        """Tells what was spent after an earlier moment."""
        return Spent(
            computed=self.computed - before.computed,
            encode=self.encode - before.encode,
            decode=self.decode - before.decode,
            waited=self.waited - before.waited,
        )
