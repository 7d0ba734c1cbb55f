"""What stages draw in a step, as a function of the seed and the step alone: a step that is repeated draws the same.

A server has sessions in several threads, and a client's caller draws for itself; the default generators are theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from thinpipe.runtime.randomness import Both, Lent, OwnCpu, Randomness, StepSeeds, generator_of


class Draws:
    """What the stages of one half draw, step by step.

    Leading operators to a generator costs some microseconds each, so a half that drew nothing in its first step is
    trusted from then on, in training and in evaluation each for itself. Should the default generator move meanwhile,
    somebody drew: if it was a stage, it is led from the next step on. One that has drawn is never trusted.

    Args:
        seed: of the session.
        devices: of the stages, by their numbers.
    """

    def __init__(self, seed: int, devices: Mapping[int, torch.device]) -> None:
        self._seed, self._devices = seed, devices
        # In training and in evaluation; None as long as nobody knows.
        self._draws: dict[bool, bool | None] = {True: None, False: None}

    def step(self, step: int, *, train: bool) -> StepDraws:
        """Prepares one step."""
        seeds = StepSeeds(self._seed, step)
        watching = self._draws[train] is not False
        stages: dict[int, Randomness] = {}
        for j, device in self._devices.items():
            own: Randomness = OwnCpu(seeds, j, watching=watching)
            stages[j] = Both([own, Lent(generator_of(device), seeds, j)]) if device.type == "cuda" else own
        return StepDraws(stages, seeds, None if watching else torch.get_rng_state())

    def settle(self, draws: StepDraws, *, train: bool) -> None:
        """Remembers whether anything was drawn in a step."""
        if draws.before is None:
            self._draws[train] = bool(self._draws[train]) or draws.seeds.drawn
        elif not torch.equal(draws.before, torch.get_rng_state()):
            self._draws[train] = None


@dataclass(frozen=True)
class StepDraws:
    """The randomness of one step.

    Args:
        stages: of each stage.
        seeds: where it comes from.
        before: the default generator's state, where nobody is watched.
    """

    stages: Mapping[int, Randomness]
    seeds: StepSeeds
    before: Tensor | None
