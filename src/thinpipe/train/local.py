"""A recipe trained by this process alone: the baseline that every split run is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe import checkpoint
from thinpipe.runtime.pipe import Pipe
from thinpipe.train.parts import optimizer, parts, whole
from thinpipe.train.recipe import Recipe


class Local:
    """Trains the whole model on one device, with the interface of a client.

    Args:
        recipe: what to train.
        folder: where states are saved; with one that has some, it goes on from the last.
        every: steps between two saved states.
        device: of the model.
    """

    cost: None = None

    def __init__(self, recipe: Recipe, *, folder: Path, every: int, device: str) -> None:
        self._recipe, self._folder, self._every = recipe, folder, every
        self._device = torch.device(device)
        self._loss = parts(recipe).loss_fn
        model = whole(recipe).to(self._device)
        # In micro-batches BatchNorm sees other batches: to have the same numbers, one device must see them, too.
        self._model: nn.Module = model
        if recipe.chunks > 1:
            self._model = Pipe(model, [len(model)], devices=[self._device], chunks=recipe.chunks, checkpoint="never")
        self._optimizer = optimizer(recipe)(self._model.parameters())
        loaded = checkpoint.load(folder, self._model, self._optimizer)
        self.committed = 0 if loaded is None else loaded.step
        self._saved = self.committed

    def step(self, inputs: Any, targets: Any) -> Tensor:
        """Trains on one batch, and returns its loss."""
        self._model.train()
        with self._dice():
            loss = self._loss(self._model(inputs.to(self._device)), targets.to(self._device))
            self._optimizer.zero_grad()
            loss.backward()
        self._optimizer.step()
        self.committed += 1
        if self.committed % self._every == 0:
            self.save()
        return loss.detach()

    def evaluate(self, inputs: Any) -> Any:
        """Returns the outputs for inputs."""
        self._model.eval()
        with torch.no_grad():
            return self._model(inputs.to(self._device)).cpu()

    def save(self) -> None:
        """Saves a state, unless the last one is of the same step."""
        if self._saved != self.committed:
            checkpoint.save(self._folder, self._model, self._optimizer, step=self.committed, keep=2)
            self._saved = self.committed

    def close(self) -> None:
        """Has nothing to end."""

    @contextmanager
    def _dice(self) -> Iterator[None]:
        """Makes what a step draws a function of its number, so that a resumed run draws the same."""
        gpus = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=gpus):
            torch.manual_seed((self._recipe.seed * 1_000_003 + self.committed) % 2**63)
            yield
