"""A recipe trained by one process whose threads have a stage each: the smallest way to see what a cut does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinpipe.bottleneck import decay
from thinpipe.checkpoint import save
from thinpipe.checkpoint.disk import until_written
from thinpipe.runtime.crossing import CodecChoice, Flow
from thinpipe.runtime.pipe import Pipe
from thinpipe.runtime.rank_step import moved
from thinpipe.stages.parts import Split
from thinpipe.train.dice import dice
from thinpipe.train.due import Due
from thinpipe.train.memories import forget_memories, load_with_memories, save_memories
from thinpipe.train.parts import loss, optimizer
from thinpipe.train.recipe import Recipe
from thinpipe.train.side_costs import SidedCost, stage_sides
from thinpipe.train.spared import Spared
from thinpipe.train.step_costs import Bytes
from thinpipe.train.updates import clip_norm, is_kept, set_lr, set_mode, verify_weights


class InProcess:
    """Trains a model that is cut into stages, in this process.

    Args:
        recipe: what to train.
        stages: its model, cut.
        folder: where states are saved; with one that has some, it goes on from the last.
        every: steps between two saved states; None for some seconds.
        devices: one for each stage; a device may be listed more than once.
        codec: packs activations at the cuts (default: nothing does).
        grad_codec: packs gradients at the cuts (default: nothing does).
        compile: whether stages are compiled (default: they are not).
    """

    def __init__(
        self,
        recipe: Recipe,
        stages: Split,
        *,
        folder: Path,
        every: int | None,
        devices: Sequence[str],
        codec: CodecChoice = None,
        grad_codec: CodecChoice = None,
        compile: bool = False,
    ) -> None:
        self._recipe, self._folder, self._due = recipe, folder, Due(every)
        # Nothing is recomputed: a cut run is compared with one that is not, and it would take a third longer.
        self._pipe = Pipe(
            stages, devices=devices, chunks=recipe.chunks, checkpoint="never", codec=codec, grad_codec=grad_codec
        )
        if compile:
            self._pipe.compile()
        self._pipe.train()
        self._spared = Spared(self._pipe, len(stages) - 1)
        self._optimizer = optimizer(recipe)(self._pipe.parameters())
        decay(self._optimizer, self._pipe)
        loaded = load_with_memories(folder, self._pipe, self._optimizer)
        self.committed = 0 if loaded is None else loaded.step
        self._saved = self.committed
        self.grad_norm: Tensor | None = None
        self.cost: SidedCost | None = None

    def step(self, inputs: Any, targets: Any, *, lr: float | None = None, clip: float | None = None) -> Tensor:
        """Trains on one batch, and returns its loss."""
        set_mode(self._pipe, train=True)
        began, before, devices = time.perf_counter(), Bytes.of_flows(self._pipe.traffic()), self._pipe.devices
        spent = self._pipe.spent()
        set_lr(self._optimizer, lr)
        with dice(self._recipe.seed, self.committed, devices):
            outputs = self._pipe(moved(inputs, devices[0]))
            found = loss(outputs, targets.to(devices[-1]))
            self._optimizer.zero_grad()
            found.backward()
        self._spared.count(len(targets))
        self.grad_norm = clip_norm(self._pipe.parameters(), clip)
        self._optimizer.step()
        self.committed += 1
        seconds = time.perf_counter() - began
        whole = Bytes.of_flows(self._pipe.traffic()).cost(
            before, step=self.committed, rows=len(targets), seconds=seconds
        )
        self.cost = SidedCost(whole, stage_sides(self._pipe.spent(), spent))
        if self._due.after(self.committed) and is_kept(self._recipe, found):
            self.save()
        return found.detach()

    def evaluate(self, inputs: Any) -> Any:
        """Returns the outputs for inputs, which cross the same cuts and codecs."""
        set_mode(self._pipe, train=False)
        with torch.no_grad():
            outputs = self._pipe(moved(inputs, self._pipe.devices[0]))
        self._spared.count(len(outputs))
        return outputs

    def traffic(self) -> list[tuple[Flow, Flow]]:
        """Tells for each cut what crossed it since this was made, forward and backward; tests included.

        Sizes of tensors are those before bottlenecks.
        """
        return self._spared.added_to(self._pipe.traffic())

    def save(self) -> None:
        """Saves a state, unless the last one is of the same step.

        Raises:
            NotFiniteError: it is not finite, and the recipe does not go on; the last one stays.
        """
        if self._saved != self.committed:
            if self._recipe.on_nan == "stop":
                verify_weights(self._pipe)
            until_written(f"step {self.committed}", self._write)
            self._saved = self.committed

    def _write(self) -> None:
        with self._due.saving():
            save_memories(self._folder, self._pipe, self.committed)
            save(self._folder, self._pipe, self._optimizer, step=self.committed, keep=2)
            forget_memories(self._folder)

    def close(self) -> None:
        """Has nothing to end."""
