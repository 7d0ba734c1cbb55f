"""What stages draw in a step, as a function of the seed and the step alone: a step that is repeated draws the same.

A server has sessions in several threads, and a client's caller draws for itself; the default generators are theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from thinpipe.runtime.randomness import Both, LentCuda, OwnCpu, Randomness, generator_of, seed_of


class StepSeeds:
    """The seeds of one step.

    Args:
        seed: of the session.
        step: its number.
    """

    def __init__(self, seed: int, step: int) -> None:
        self._text = f"{seed}.{step}."
        self.drawn = False

    def seed(self, j: int, i: int) -> int:
        """Makes the seed of stage ``j`` for micro-batch ``i``."""
        return seed_of(f"{self._text}{j}.{i}".encode())


class Draws:
    """The randomness of one half's stages in one step.

    Args:
        seeds: of the step.
        devices: of the stages, by their numbers.
    """

    def __init__(self, seeds: StepSeeds, devices: Mapping[int, torch.device]) -> None:
        self.stages: dict[int, Randomness] = {}
        for j, device in devices.items():
            # Watched in every step: a layer that begins to draw late would draw other numbers when it is repeated.
            own: Randomness = OwnCpu(seeds, j, watching=True)
            if device.type == "cuda":
                own = Both([own, LentCuda(generator_of(device), seeds, j)])
            self.stages[j] = own
