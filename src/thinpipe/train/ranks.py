"""A recipe trained by several processes that torchrun has started, each with its stages of the model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from thinpipe import checkpoint
from thinpipe.bottleneck import decay
from thinpipe.checkpoint.disk import until_written
from thinpipe.links import Throttle
from thinpipe.runtime.crossing import CodecChoice
from thinpipe.runtime.pipeline import Pipeline
from thinpipe.stages.microbatch import row_counts
from thinpipe.stages.parts import Split
from thinpipe.train.parts import loss, optimizer
from thinpipe.train.recipe import Recipe
from thinpipe.train.side_costs import SidedCost, rank_sides
from thinpipe.train.step_costs import RankCost, ranks_cost
from thinpipe.train.stop import SharedStop
from thinpipe.train.together import said_by
from thinpipe.train.updates import is_kept, set_lr, verify_together


class Ranks:
    """Trains a model whose stages are spread over ranks; all of them make one and call the same.

    Args:
        recipe: what to train.
        stages: its model, cut.
        folder: where states are saved, on a file system that all ranks share; with one that has some, it goes on from
            the last.
        every: steps between two saved states.
        device: of this rank's stages.
        stop: told after every step which ranks had a signal.
        workers: the rank of each stage (default: dealt out in turn).
        replicas: how many pipelines there are, each of which trains its rows of every batch (default: one).
        schedule: of the micro-batches (default: ``1f1b``).
        codec: packs activations at the cuts (default: nothing does).
        grad_codec: packs gradients at the cuts (default: nothing does).
        bandwidth: bits a second of an emulated link from each rank to each other (default: as fast as it is).
        trace: a file for a trace of all ranks (default: none).
    """

    def __init__(
        self,
        recipe: Recipe,
        stages: Split,
        *,
        folder: Path,
        every: int,
        device: torch.device,
        stop: SharedStop,
        workers: Sequence[int] | None = None,
        replicas: int = 1,
        schedule: str = "1f1b",
        codec: CodecChoice = None,
        grad_codec: CodecChoice = None,
        bandwidth: float | None = None,
        trace: Path | None = None,
    ) -> None:
        self._recipe, self._folder, self._every, self._stop = recipe, folder, every, stop
        self._pipeline = Pipeline(
            stages,
            chunks=recipe.chunks,
            loss_fn=loss,
            schedule=schedule,
            codec=codec,
            grad_codec=grad_codec,
            map=workers,
            replicas=replicas,
            device=device,
            seed=recipe.seed,
            throttle=None if bandwidth is None else lambda: Throttle(bandwidth),
            trace=trace,
        )
        own = [parameter for parameter in self._pipeline.parameters() if parameter.requires_grad]
        # A stage of nothing but functions has nothing to optimize, which PyTorch's optimizers refuse to do.
        self._optimizer = optimizer(recipe)(own) if own else None
        if self._optimizer is not None:
            decay(self._optimizer, self._pipeline)
        loaded = checkpoint.load(folder, self._pipeline, self._optimizer)
        self.committed = 0 if loaded is None else loaded.step
        self._pipeline.load_rng_state_dict({"seed": recipe.seed, "step": self.committed})
        self._saved = self.committed
        self.cost: SidedCost | None = None

    def step(self, inputs: Any, targets: Any, *, lr: float | None = None, clip: float | None = None) -> Tensor:
        """Trains on one batch, and returns its loss, on every rank."""
        self._pipeline.train()
        began, before = time.perf_counter(), self._counted()
        set_lr(self._optimizer, lr)
        found = self._pipeline.step(self._own(inputs), self._own(targets))
        if clip is not None:
            self._pipeline.clip_grad_norm_(clip)
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()
        self.committed += 1
        told = self._confer(before)
        seconds = time.perf_counter() - began
        whole = ranks_cost(told, step=self.committed, rows=len(targets), seconds=seconds)
        self.cost = SidedCost(whole, rank_sides(told))
        if self.committed % self._every == 0 and is_kept(self._recipe, found):
            self.save()
        return found.detach()

    def evaluate(self, inputs: Any) -> Any:
        """Returns the outputs for inputs, on every rank: each computes the same metrics, and one of them logs."""
        output = self._pipeline.evaluate(self._own(inputs))
        shapes = self._pipeline.gather("the shape of outputs", None if output is None else list(output.shape))
        parts = []
        for source, shape in enumerate(shapes):
            if shape is not None:
                mine = source == self._pipeline.rank
                parts.append(output.detach().float().cpu().contiguous() if mine else torch.empty(shape))
                dist.broadcast(parts[-1], source)
        return torch.cat(parts)

    def save(self) -> None:
        """Saves a state with all ranks, unless the last one is of the same step.

        Raises:
            NotFiniteError: a part of it is not finite, and the recipe does not go on; all ranks raise it.
        """
        if self._saved != self.committed:
            if self._recipe.on_nan == "stop":
                verify_together(self._pipeline, lambda said: self._pipeline.gather("whether weights are finite", said))
            # All ranks hear of a full disk, and wait together.
            until_written(f"step {self.committed}", self._write, said_by(self._pipeline.rank))
            self._saved = self.committed

    def _write(self) -> None:
        checkpoint.save(self._folder, self._pipeline, self._optimizer, step=self.committed, keep=2)

    def close(self) -> None:
        """Ends the pipeline, and writes the trace."""
        self._pipeline.close()

    def _own(self, batch: Any) -> Any:
        """Takes this replica's rows out of a batch, perhaps none: replicas have one part after the other."""
        replicas = self._pipeline.replicas
        sizes = row_counts(len(tree_leaves(batch)[0]), replicas)
        ends = list(accumulate(sizes + [0] * (replicas - len(sizes)), initial=0))
        rows = slice(*ends[self._pipeline.replica :][:2])
        return tree_map_only(Tensor, lambda tensor: tensor[rows], batch)

    def _confer(self, before: RankCost) -> list[RankCost]:
        """Tells all ranks what this one counted in the step, and which signal it had: one message for both."""
        last = self._pipeline.replicas - 1
        own = self._counted().since(before).with_sums(self._summed(), higher=self._pipeline.replica < last)
        told = self._pipeline.gather("the cost of a step", [self._stop.own, own.to_json()])
        self._stop.heard(signal for signal, _ in told)
        return [RankCost(**cost) for _, cost in told]

    def _summed(self) -> int:
        """Tells what this rank sent for the sums over replicas: they go round in a ring, all but its own part twice."""
        statistics, replicas = self._pipeline.statistics, self._pipeline.replicas
        return 0 if statistics is None else 2 * (replicas - 1) * statistics.reduced // replicas

    def _counted(self) -> RankCost:
        return RankCost.so_far(
            self._pipeline.rank, self._pipeline.statistics, timed=self._pipeline.device.type == "cpu"
        )
