"""The samples of a run: which ones a step sees is a function of the recipe and the step's number alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from thinpipe.train.recipe import Recipe


@dataclass(frozen=True)
class Samples:
    """Inputs and their targets, row by row.

    Args:
        inputs: floating point; or bytes of 0 to 255, which become -1 to 1 in a batch.
        targets: one for each row.
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def rows(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Takes some rows."""
        inputs = self.inputs[chosen]
        # Bytes are a quarter of the memory; a batch of them is a matter of milliseconds to convert.
        return (inputs.float() / 127.5 - 1 if inputs.dtype == torch.uint8 else inputs), self.targets[chosen]


@dataclass(frozen=True)
class Data:
    """What is trained on and tested with.

    ::

        epoch                 0               1
        step          0     1     2    3     4     5
        rows        [===] [===] [=]  [===] [===] [=]      each epoch in an order of its own, drawn from (seed, epoch)

    A run that is resumed, or that goes back some steps with its server, asks again for a step's batch and gets it.

    Args:
        train: samples to train on.
        test: samples to test with, all of them each time.
        batch_size: rows in a batch.
        seed: of the orders.
    """

    train: Samples
    test: Samples
    batch_size: int
    seed: int

    @classmethod
    def of(cls, recipe: Recipe, train: Samples, test: Samples) -> Data:
        """Deals samples out as the recipe says."""
        return cls(train, test, recipe.batch, recipe.seed)

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch; the last one may be smaller."""
        return -(-len(self.train) // self.batch_size)

    def epoch(self, step: int) -> int:
        """Tells in which epoch a step is, from 0."""
        return step // self.steps_per_epoch

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Returns the inputs and targets of a step, numbered from 0 over all epochs."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = _order(len(self.train), self.seed, epoch)
        return self.train.rows(order[place * self.batch_size : (place + 1) * self.batch_size])

    def evaluation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Returns the whole test set in batches, always in the same order."""
        return (self.test.rows(rows) for rows in torch.arange(len(self.test)).split(self.batch_size))


@lru_cache(maxsize=2)
def _order(rows: int, seed: int, epoch: int) -> Tensor:
    # Epochs of one seed never meet those of the next: nobody trains for a million.
    mixed = (seed * 1_000_003 + epoch) % 2**63
    return torch.randperm(rows, generator=torch.Generator().manual_seed(mixed))
