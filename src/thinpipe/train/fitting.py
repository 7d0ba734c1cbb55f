"""The fit of a recipe's bottlenecks: before its first step they are begun with what loses least of its own samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from thinpipe.bottleneck import bottleneck_state, fit, load_bottlenecks
from thinpipe.extras import need
from thinpipe.runtime.rank_step import moved
from thinpipe.stages.parts import Split
from thinpipe.train.data import Data
from thinpipe.train.recipe import Recipe


def fit_bottlenecks(recipe: Recipe, stages: Split, data: Data, *, device: torch.device | str, keep: Path) -> None:
    """Begins bottlenecks with what loses least of the activations of a run's first batches, and keeps their weights.

    Activations are those of training, but for dropout: BatchNorm takes the statistics of the batch, and its own stay as
    they were.

    Args:
        recipe: what to train.
        stages: with both halves of every bottleneck.
        data: its samples.
        device: where the model is run; it stays there.
        keep: the file that gets the weights.
    """
    for stage in stages:
        stage.to(device)
    with _batch_statistics(stages):
        fit(stages, _FirstBatches(data, recipe.bottleneck_fit, torch.device(device)))
    _save(stages, keep)


def share_bottlenecks(stages: Split) -> None:
    """Gives all ranks the weights of rank 0's bottlenecks.

    Not by a fit on each of them: of components that matter alike two machines may find other mixtures, and a receiver
    would undo what no sender does.
    """
    state = {name: tensor.cpu().contiguous() for name, tensor in bottleneck_state(stages).items()}
    for tensor in state.values():
        dist.broadcast(tensor, src=0)
    load_bottlenecks(stages, state)


def _save(stages: Split, path: Path) -> None:
    need("fitted bottlenecks", "safetensors")
    from safetensors.torch import save_file

    state = {name: tensor.cpu().contiguous() for name, tensor in bottleneck_state(stages).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    save_file(state, part)
    part.replace(path)


@dataclass(frozen=True)
class _FirstBatches:
    """The inputs of the first steps, made anew each time that they are gone through: all at once may be much.

    Args:
        data: the samples.
        count: how many steps.
        device: where they are wanted.
    """

    data: Data
    count: int
    device: torch.device

    def __iter__(self) -> Iterator[Any]:
        for step in range(self.count):
            yield moved(self.data.batch(step)[0], self.device)


@contextmanager
def _batch_statistics(stages: Sequence[nn.Module]) -> Iterator[None]:
    """Has BatchNorm take the statistics of the batch even in evaluation, which it does where it has none of its own."""
    norms = [each for stage in stages for each in stage.modules() if isinstance(each, _BatchNorm)]
    kept = [(norm.running_mean, norm.running_var) for norm in norms]
    try:
        for norm in norms:
            norm.running_mean = norm.running_var = None
        yield
    finally:
        for norm, (mean, variance) in zip(norms, kept, strict=True):
            norm.running_mean, norm.running_var = mean, variance
