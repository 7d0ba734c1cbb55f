"""A recipe trained by this process alone: the baseline that every split run is compared with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe import checkpoint
from thinpipe.checkpoint.disk import until_written
from thinpipe.runtime.pipe import Pipe
from thinpipe.runtime.rank_step import moved
from thinpipe.stages.compiled import compiled
from thinpipe.train.dice import dice
from thinpipe.train.due import Due
from thinpipe.train.parts import loss, optimizer, stages_of
from thinpipe.train.recipe import Recipe
from thinpipe.train.updates import clip_norm, is_kept, set_lr, set_mode, verify_weights


class Local:
    """Trains the whole model on one device, with the interface of a client.

    Args:
        recipe: what to train.
        folder: where states are saved; with one that has some, it goes on from the last.
        every: steps between two saved states; None for some seconds.
        device: of the model.
        compile: whether the model is compiled (default: it is not).
    """

    cost: None = None

    def __init__(self, recipe: Recipe, *, folder: Path, every: int | None, device: str, compile: bool = False) -> None:
        self._recipe, self._folder, self._due = recipe, folder, Due(every)
        self._device = torch.device(device)
        stages = stages_of(recipe, 1)
        model = stages.to_model().to(self._device)
        # In micro-batches BatchNorm sees other batches: to have the same numbers, one device must see them, too.
        sequence = stages.sequential()
        self._run: nn.Module = sequence
        self._model: nn.Module = model
        self._compute: Callable[[Any], Any] = sequence
        if recipe.chunks > 1:
            pipe = Pipe(stages, devices=[self._device], chunks=recipe.chunks, checkpoint="never")
            if compile:
                pipe.compile()
            self._model = self._run = self._compute = pipe
        elif compile:
            self._compute = compiled(sequence)
        for module in (self._model, self._run):
            module.train()
        self._optimizer = optimizer(recipe)(self._model.parameters())
        loaded = checkpoint.load(folder, self._model, self._optimizer)
        self.committed = 0 if loaded is None else loaded.step
        self._saved = self.committed
        self.grad_norm: Tensor | None = None

    def step(self, inputs: Any, targets: Any, *, lr: float | None = None, clip: float | None = None) -> Tensor:
        """Trains on one batch, and returns its loss."""
        set_mode(self._model, self._run, train=True)
        set_lr(self._optimizer, lr)
        with dice(self._recipe.seed, self.committed, [self._device]):
            found = loss(self._compute(moved(inputs, self._device)), moved(targets, self._device))
            self._optimizer.zero_grad()
            found.backward()
        self.grad_norm = clip_norm(self._model.parameters(), clip)
        self._optimizer.step()
        self.committed += 1
        if self._due.after(self.committed) and is_kept(self._recipe, found):
            self.save()
        return found.detach()

    def evaluate(self, inputs: Any) -> Any:
        """Returns the outputs for inputs."""
        set_mode(self._model, self._run, train=False)
        with torch.no_grad():
            return self._compute(moved(inputs, self._device))

    def save(self) -> None:
        """Saves a state, unless the last one is of the same step.

        Raises:
            NotFiniteError: it is not finite, and the recipe does not go on; the last one stays.
        """
        if self._saved != self.committed:
            if self._recipe.on_nan == "stop":
                verify_weights(self._model)
            until_written(f"step {self.committed}", self._write)
            self._saved = self.committed

    def _write(self) -> None:
        with self._due.saving():
            checkpoint.save(self._folder, self._model, self._optimizer, step=self.committed, keep=2)

    def close(self) -> None:
        """Has nothing to end."""
