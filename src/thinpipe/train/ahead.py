"""The next step's batch, made while a GPU still computes this one: it never waits for its samples."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thinpipe.train.data import Data


class Ahead:
    """Batches by the number of their step, in any order; the next one may be there already.

    Args:
        data: the samples. Which ones a step sees depends on its number alone, so making them early changes nothing.
    """

    def __init__(self, data: Data) -> None:
        self._data = data
        self._made: tuple[int, tuple[Any, Tensor]] | None = None

    def batch(self, step: int) -> tuple[Any, Tensor]:
        """Returns the inputs and targets of a step."""
        made, self._made = self._made, None
        return made[1] if made is not None and made[0] == step else self._data.batch(step)

    def prepare(self, step: int) -> None:
        """Queues the making of a step's batch behind what a GPU is at; on a CPU it would only be in the way."""
        if self._data.device.type == "cuda":
            self._made = (step, self._data.batch(step))
