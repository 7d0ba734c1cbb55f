"""A recipe trained by several processes, each with the whole model and its rows of every batch.

::

    one device   [ 0  1  2  3 | 4  5  6 ]        a batch of 7 rows in two micro-batches
    rank 0       [ 0  1       | 4  5    ]        each micro-batch is dealt out to all ranks, and nothing is repeated
    rank 1       [       2  3 |       6 ]        or left out to make parts equal

The gradient of a mean over all rows is not the mean of the ranks' gradients where they have different numbers of rows:
each rank's loss is weighted by its rows before DistributedDataParallel takes the mean.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from thinpipe import checkpoint
from thinpipe.checkpoint.disk import until_written
from thinpipe.errors import CheckpointError, DiskError
from thinpipe.remote.cost import StepCost
from thinpipe.runtime.rank_step import moved
from thinpipe.stages.microbatch import row_counts
from thinpipe.train.dice import dice
from thinpipe.train.parts import loss, optimizer, stages_of
from thinpipe.train.recipe import Recipe
from thinpipe.train.step_costs import Bytes
from thinpipe.train.stop import SharedStop
from thinpipe.train.synced_norm import sync_batch_norm, uncounted
from thinpipe.train.together import said_by
from thinpipe.train.updates import clip_norm, is_kept, set_lr, verify_together


@dataclass(frozen=True)
class _Part:
    """What a rank has of a micro-batch.

    Args:
        rows: of the batch.
        count: how many of them are its own; 0 where the only one is another's.
    """

    rows: slice
    count: int


class DataParallel:
    """Trains one model on several ranks by DistributedDataParallel; all of them make one and call the same.

    Args:
        recipe: what to train; its batch is that of all ranks together.
        folder: where rank 0 saves states, on a file system that all ranks share; with one that has some, it goes on
            from the last.
        every: steps between two saved states.
        device: of this rank's model.
        stop: told after every step which ranks had a signal.
    """

    def __init__(self, recipe: Recipe, *, folder: Path, every: int, device: torch.device, stop: SharedStop) -> None:
        self._recipe, self._folder, self._every, self._stop = recipe, folder, every, stop
        self._device, self._rank, self._world = device, dist.get_rank(), dist.get_world_size()
        stages = stages_of(recipe, 1)
        self._model = stages.to_model().to(device)
        self._run = stages.sequential()
        self._optimizer = optimizer(recipe)(self._model.parameters())
        loaded = checkpoint.load(folder, self._model, self._optimizer)
        self.committed = 0 if loaded is None else loaded.step
        self._saved = self.committed
        self._verify_same_step()
        backend = "nccl" if device.type == "cuda" else "gloo"
        self._norms, gradients_group = (dist.new_group(backend=backend) for _ in range(2))
        if recipe.batch_norm == "all":
            sync_batch_norm(self._model, self._norms)
        self._ddp = DistributedDataParallel(self._run, process_group=gradients_group)
        # What a rank sends when sums go round in a ring, as they do: all but its own part, twice.
        gradients = sum(p.numel() * p.element_size() for p in self._model.parameters() if p.requires_grad)
        ring = 2 * (self._world - 1) * gradients // self._world
        self._bytes = Bytes(ring, ring, ring, ring)
        self.cost: StepCost | None = None

    def step(self, inputs: Any, targets: Any, *, lr: float | None = None, clip: float | None = None) -> Tensor:
        """Trains on one batch, and returns its loss, on every rank."""
        began = time.perf_counter()
        self._run.train()
        self._optimizer.zero_grad()
        set_lr(self._optimizer, lr)
        rows = len(targets)
        micros = self._own(rows)
        total = torch.zeros((), device=self._device)
        with dice(self._recipe.seed, self.committed, [self._device], apart=self._rank):
            for part in micros:
                # Gradients of all micro-batches are added up here first; the last one takes them along.
                with self._ddp.no_sync() if part is not micros[-1] else nullcontext():
                    value = self._weighted(inputs, targets, part, rows)
                    (value * self._world).backward()
                total += value.detach()
        clip_norm(self._model.parameters(), clip)
        self._optimizer.step()
        self.committed += 1
        total = self._confer(total)
        seconds = time.perf_counter() - began
        self.cost = self._bytes.cost(Bytes(), step=self.committed, rows=rows, seconds=seconds)
        if self.committed % self._every == 0 and is_kept(self._recipe, total):
            self.save()
        return total

    def evaluate(self, inputs: Any) -> Any:
        """Returns the outputs for inputs, on every rank; each computes those of its rows."""
        self._run.eval()
        self._share_statistics()
        with torch.no_grad():
            rows = _count(inputs)
            if rows < self._world:
                return self._run(moved(inputs, self._device))
            sizes = row_counts(rows, self._world)
            first = sum(sizes[: self._rank])
            own = self._run(moved(_rows(inputs, slice(first, first + sizes[self._rank])), self._device))
            return _together(own.float().cpu(), sizes)

    def save(self) -> None:
        """Has rank 0 save a state, unless the last one is of the same step.

        Raises:
            NotFiniteError: it is not finite, and the recipe does not go on; all ranks raise it.
        """
        if self._saved != self.committed:
            if self._recipe.on_nan == "stop":
                verify_together(self._model, self._told)
            until_written(f"step {self.committed}", self._write, said_by(self._rank))
            self._saved = self.committed

    def _write(self) -> None:
        """Has rank 0 write; all ranks hear of a full disk, and wait together."""
        failed: DiskError | None = None
        if self._rank == 0:
            try:
                checkpoint.save(self._folder, self._model, self._optimizer, step=self.committed, keep=2)
            except DiskError as error:
                failed = error
        full = torch.tensor([int(failed is not None)])
        dist.broadcast(full, src=0)
        if full:
            raise failed or DiskError("rank 0 cannot save", "its disk does not take it")

    def close(self) -> None:
        """Has nothing to end."""

    def _share_statistics(self) -> None:
        """Gives all ranks the running statistics of rank 0, where each has moved its own: all must test one model."""
        if self._recipe.batch_norm == "own":
            for buffer in self._model.buffers():
                dist.broadcast(buffer, src=0, group=self._norms)

    def _own(self, rows: int) -> list[_Part]:
        """Lists this rank's rows of each micro-batch."""
        sizes = row_counts(rows, self._recipe.chunks)
        found: list[_Part] = []
        for end, size in zip(accumulate(sizes), sizes, strict=True):
            shares = row_counts(size, self._world)
            shares += [0] * (self._world - len(shares))
            first = end - size + sum(shares[: self._rank])
            own = shares[self._rank]
            # Not every model can do without any row, and the others wait for this rank's sums: it lends itself one.
            found.append(_Part(slice(first, first + own), own) if own else _Part(slice(end - 1, end), 0))
        return found

    def _weighted(self, inputs: Any, targets: Tensor, part: _Part, rows: int) -> Tensor:
        """Computes what this rank's rows add to the mean over all rows."""
        with nullcontext() if part.count else uncounted(self._run):
            outputs = self._ddp(moved(_rows(inputs, part.rows), self._device))
        return loss(outputs, targets[part.rows].to(self._device)) * (part.count / rows)

    def _confer(self, own: Tensor) -> Tensor:
        """Adds up the losses of all ranks, and hears which of them had a signal."""
        told = torch.zeros(self._world, 2, dtype=torch.float64)
        told[self._rank] = torch.tensor([float(own), self._stop.own], dtype=torch.float64)
        dist.all_reduce(told)
        self._stop.heard(int(signal) for signal in told[:, 1])
        return told[:, 0].sum().float()

    def _told(self, said: str) -> list[str]:
        """Collects a text of each rank."""
        found: list[Any] = [None] * self._world
        dist.all_gather_object(found, said)
        return found

    def _verify_same_step(self) -> None:
        steps = torch.zeros(self._world, dtype=torch.int64)
        steps[self._rank] = self.committed
        dist.all_reduce(steps)
        for rank, step in enumerate(steps.tolist()):
            if step != steps[0]:
                raise CheckpointError(
                    f"rank 0 goes on from step {int(steps[0])}, rank {rank} from {step}; states need a folder that all "
                    "ranks share"
                )


def _rows(tree: Any, chosen: slice) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor[chosen], tree)


def _count(tree: Any) -> int:
    sizes: list[int] = []
    tree_map_only(Tensor, lambda tensor: sizes.append(len(tensor)), tree)
    return sizes[0]


def _together(own: Tensor, sizes: list[int]) -> Tensor:
    """Puts the outputs of all ranks one after the other; they have different numbers of rows."""
    padded = own.new_zeros((max(sizes), *own.shape[1:]))
    padded[: len(own)] = own
    found = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(found, padded)
    return torch.cat([part[:size] for part, size in zip(found, sizes, strict=True)])
