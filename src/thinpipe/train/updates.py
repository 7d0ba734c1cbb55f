"""What is around a step, the same for whoever computes the gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def set_mode(*modules: nn.Module, train: bool) -> None:
    """Has modules train, or not; in most steps they do already, and a large one takes milliseconds to be told."""
    for module in modules:
        if module.training != train:
            module.train(train)


def set_lr(optimizer: torch.optim.Optimizer | None, lr: float | None) -> None:
    """Has an optimizer take a learning rate for all its parameters; None leaves it as it is."""
    if optimizer is not None and lr is not None:
        for group in optimizer.param_groups:
            group["lr"] = lr


def clip_norm(parameters: Iterable[nn.Parameter], most: float | None) -> None:
    """Scales gradients so that their common norm is at most ``most``; None for any norm."""
    if most is not None:
        torch.nn.utils.clip_grad_norm_(parameters, most)
