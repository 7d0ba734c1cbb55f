"""``warm_up``: trains bottlenecks alone, in a model that does not move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinpipe.bottleneck.fitting import arrivals
from thinpipe.bottleneck.insertion import halves, pairs
from thinpipe.bottleneck.pair import crossed
from thinpipe.runtime.assembly import as_sequence
from thinpipe.stages.skip import SkipStore, skips_in


@contextmanager
def frozen(stages: Iterable[nn.Module]) -> Iterator[None]:
    """Holds everything still but the bottlenecks, in whatever trains the stages inside.

    Weights get no gradients; and all modules are in evaluation, where BatchNorm leaves its statistics alone and Dropout
    drops nothing. Afterwards everything trains, or not, as it did before.

    Args:
        stages: with bottlenecks, in one process or in several, each with its own.
    """
    kept = list(stages)
    modes = {module: module.training for stage in kept for module in stage.modules()}
    moving = {id(parameter) for half in halves(kept) for parameter in half.parameters()}
    still = [parameter for stage in kept for parameter in stage.parameters() if id(parameter) not in moving]
    needed = [parameter.requires_grad for parameter in still]
    try:
        for module in modes:
            module.training = False
        for parameter in still:
            parameter.requires_grad = False
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        for parameter, before in zip(still, needed, strict=True):
            parameter.requires_grad = before


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Makes the optimizer of a warm-up, if nobody chooses another."""
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0)


def warm_up(
    stages: Sequence[nn.Module],
    batches: Iterable[Any],
    *,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    epochs: int = 1,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = adamw,
) -> list[float]:
    """Trains the bottlenecks of a model, and nothing else: no weight and no statistic of the model moves.

    Args:
        stages: with both halves of every bottleneck, as ``insert`` returns them.
        batches: what the first stage takes; with a ``loss_fn``, pairs of that and the targets. Gone through once an
            epoch.
        loss_fn: of outputs and targets: the model's own loss is made small (default: the mean square of what each
            bottleneck loses).
        epochs: how often the batches are gone through (default: 1).
        optimizer: makes the optimizer of the bottlenecks' weights (default: AdamW, 1e-3).

    Returns:
        The loss of every step.

    Raises:
        BottleneckError: there are no bottlenecks, or only one half of one.
    """
    found = pairs(stages)
    kept = list(batches) if isinstance(batches, Iterator) else batches
    weights = [parameter for pair in found for half in pair for parameter in half.parameters()]
    losses: list[float] = []
    with frozen(stages):
        stepper = optimizer(weights)
        for _ in range(epochs):
            for loss in _of_the_task(stages, kept, loss_fn) if loss_fn else _of_the_pairs(stages, kept):
                stepper.zero_grad()
                loss.backward()
                stepper.step()
                losses.append(loss.item())
        stepper.zero_grad()
    return losses


def _of_the_task(
    stages: Sequence[nn.Module], batches: Iterable[Any], loss_fn: Callable[[Any, Any], Tensor]
) -> Iterator[Tensor]:
    for inputs, targets in batches:
        value = inputs
        with skips_in(SkipStore()):
            for stage in stages:
                value = as_sequence(stage)(value)
        yield loss_fn(value, targets)


def _of_the_pairs(stages: Sequence[nn.Module], batches: Iterable[Any]) -> Iterator[Tensor]:
    """Yields the sum over all pairs of the mean square of what they lose, each of what reaches it."""
    found = pairs(stages)
    for reached in arrivals(stages, batches, [sender for sender, _ in found]):
        losses = [functional.mse_loss(crossed(*pair, x), x) for pair, x in zip(found, reached, strict=True)]
        yield torch.stack(losses).sum()
