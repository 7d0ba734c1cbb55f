"""The samples of a run: which ones a step sees is a function of the recipe and the step's number alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from thinpipe.data.images import names_text
from thinpipe.data.locate import DamagedDataError
from thinpipe.train.recipe import Recipe, RecipeError

_CPU = torch.device("cpu")
_MOST = 0.25
"""The share of a GPU's free memory that samples may have for good."""


@dataclass(frozen=True)
class Samples:
    """Inputs and their targets, row by row.

    Args:
        inputs: a tensor, or a dictionary of tensors, with a row for each sample.
        targets: one for each row.
    """

    inputs: Any
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def size(self) -> int:
        """The number of their bytes."""
        return sum(each.nbytes for each in tree_leaves((self.inputs, self.targets)))

    def first(self, count: int) -> Samples:
        """Takes the first rows."""
        return Samples(tree_map(lambda each: each[:count], self.inputs), self.targets[:count])

    def to(self, device: torch.device) -> Samples:
        """Moves them."""
        return Samples(tree_map(lambda each: each.to(device), self.inputs), self.targets.to(device))

    def rows(self, chosen: Tensor, device: torch.device) -> tuple[Any, Tensor]:
        """Takes some rows, to a device."""
        # Picked where they lie: a few rows are a small thing to move, all of them are not.
        # Without waiting: a GPU may still be busy with the last step, and nobody writes into an order.
        there = chosen.to(self.targets.device, non_blocking=True)

        def take(each: Tensor) -> Tensor:
            return each[there].to(device, non_blocking=True)

        return tree_map(take, self.inputs), take(self.targets)


def floats(inputs: Any, _: int | None) -> Any:
    """Makes bytes of 0 to 255 numbers of -1 to 1, and leaves everything else as it is.

    Bytes are a quarter of the memory; a batch of them is a matter of milliseconds to convert.
    """
    return tree_map(lambda each: each.float() / 127.5 - 1 if each.dtype == torch.uint8 else each, inputs)


Prepare = Callable[[Any, int | None], Any]
"""Makes of rows, as they are kept, what a model takes; on the device where they are. In training it gets the step's
number, which what it draws depends on; in a test it gets None."""


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
        prepare: makes a batch of rows (default: bytes become numbers of -1 to 1).
        device: where batches are wanted (default: the CPU).
        drop_last: whether an epoch ends before a batch that would not be full (default: it is trained on, smaller).
        notes: what a reader of the run must know of them: what is damaged or missing (default: nothing).
    """

    train: Samples
    test: Samples
    batch_size: int
    seed: int
    prepare: Prepare = floats
    device: torch.device = _CPU
    drop_last: bool = False
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        train: Samples,
        test: Samples,
        prepare: Prepare = floats,
        *,
        classes: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> Data:
        """Deals samples out as the recipe says.

        Args:
            recipe: what is trained.
            train: all samples to train on.
            test: all samples to test with.
            prepare: makes a batch of rows (default: bytes become numbers of -1 to 1).
            classes: their names; each should have samples to train on and to test with (default: it is not asked).
            notes: what is known to be wrong with the samples (default: nothing).

        Raises:
            DamagedDataError: classes are tested that nothing is trained on, and the recipe does not allow it.
        """
        train, test = (each.first(recipe.limit) if recipe.limit else each for each in (train, test))
        drop_last = recipe.last_batch == "drop"
        if drop_last and len(train) < recipe.batch:
            raise RecipeError(
                f"last_batch=drop leaves nothing to train on: a batch is {recipe.batch} samples, and there are "
                f"{len(train)}; use last_batch=keep, or a smaller batch"
            )
        if classes:
            notes = (*notes, *_without_samples(recipe, train, test, classes))
        return cls(train, test, recipe.batch, recipe.seed, prepare, drop_last=drop_last, notes=tuple(notes))

    def on(self, device: torch.device | str) -> Data:
        """Returns the same samples with batches made on a device, where augmentation then runs.

        On a GPU that has the room, all samples are moved there once, so that no step waits for the bus.
        """
        chosen = torch.device(device)
        moved = replace(self, device=chosen)
        if chosen.type != "cuda":
            return moved
        free, _ = torch.cuda.mem_get_info(chosen)
        if self.train.size + self.test.size > _MOST * free:
            return moved
        return replace(moved, train=self.train.to(chosen), test=self.test.to(chosen))

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch; the last one may be smaller, unless it is dropped."""
        full, left = divmod(len(self.train), self.batch_size)
        return full if self.drop_last or not left else full + 1

    def epoch(self, step: int) -> int:
        """Tells in which epoch a step is, from 0."""
        return step // self.steps_per_epoch

    def batch(self, step: int) -> tuple[Any, Tensor]:
        """Returns the inputs and targets of a step, numbered from 0 over all epochs."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = _order(len(self.train), self.seed, epoch)
        rows = order[place * self.batch_size : (place + 1) * self.batch_size]
        inputs, targets = self.train.rows(rows, self.device)
        return self.prepare(inputs, step), targets

    def evaluation(self) -> Iterator[tuple[Any, Tensor]]:
        """Returns the whole test set in batches, always in the same order."""
        for rows in torch.arange(len(self.test)).split(self.batch_size):
            inputs, targets = self.test.rows(rows, self.device)
            yield self.prepare(inputs, None), targets


def _without_samples(recipe: Recipe, train: Samples, test: Samples, classes: Sequence[str]) -> Iterator[str]:
    """Names the classes that one of the two splits has no sample of, or both.

    Raises:
        DamagedDataError: they are tested and not trained on, and the recipe does not allow it.
    """
    trained, tested = (torch.bincount(each.targets, minlength=len(classes)).tolist() for each in (train, test))
    found: dict[str, list[str]] = {}
    for name, here, there in zip(classes, trained, tested, strict=True):
        if not (here and there):
            lost = "test with and none to train on" if there else "train on and none to test with" if here else ""
            found.setdefault(lost, []).append(name)
    for lost, names in found.items():
        said = f"{len(names):,} of {len(classes):,} classes have " + (f"samples to {lost}" if lost else "no samples")
        said += f": {names_text(names)}"
        if recipe.limit:
            said += f", among the first {recipe.limit:,} (limit)"
        elif lost.startswith("test") and recipe.untrained_classes == "refuse":
            raise DamagedDataError(
                f"{said}. An accuracy on them would mean nothing: add samples to train on, take these classes out of "
                "the data set, or go on all the same with --set untrained_classes=allow"
            )
        yield said


def mixed(seed: int, number: int) -> int:
    """Makes one seed of a run's and the number of an epoch or a step."""
    # Numbers of one seed never meet those of the next: nobody trains for a million epochs.
    return (seed * 1_000_003 + number) % 2**63


@lru_cache(maxsize=2)
def _order(rows: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(rows, generator=torch.Generator().manual_seed(mixed(seed, epoch)))
