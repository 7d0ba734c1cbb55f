"""What is around a step, the same for whoever computes the gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from thinpipe.errors import NotFiniteError
from thinpipe.train.recipe import Recipe


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


def clip_norm(parameters: Iterable[nn.Parameter], most: float | None) -> Tensor:
    """Scales gradients so that their common norm is at most ``most``; None for any norm.

    Returns:
        The norm that they had before.
    """
    own = list(parameters)
    norm = torch.nn.utils.get_total_norm([each.grad for each in own if each.grad is not None])
    if most is not None:
        torch.nn.utils.clip_grads_with_norm_(own, most, norm)
    return norm


def verify_loss(value: float | Tensor) -> None:
    """Checks the loss of a step.

    Raises:
        NotFiniteError: it is NaN or infinite.
    """
    if not math.isfinite(found := float(value)):
        raise NotFiniteError(f"the loss is {found}")


def is_kept(recipe: Recipe, loss: Tensor) -> bool:
    """Tells whether what a step has made may be saved: not if its loss is not finite, and the loop is about to stop.

    Asked of steps that would be saved alone, since a GPU is waited for.
    """
    return recipe.on_nan == "continue" or bool(loss.isfinite())


def verify_weights(model: nn.Module) -> None:
    """Checks what is about to be saved. In no other step does a GPU have to be waited for.

    Raises:
        NotFiniteError: a parameter or a statistic of BatchNorm is NaN or infinite, or another buffer NaN.
    """
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if not weights.isfinite().all():
                raise NotFiniteError(f"the weights {name} are not finite")
        for name, buffer in model.named_buffers():
            # Infinities are at home in a mask.
            counted = name.rpartition(".")[2] in ("running_mean", "running_var")
            if not buffer.isfinite().all() if counted else buffer.isnan().any():
                raise NotFiniteError(f"the buffer {name} is not finite")


def verify_together(model: nn.Module, tell: Callable[[str], Sequence[str]]) -> None:
    """Checks what several ranks are about to save, each its part.

    Args:
        model: the part of this rank.
        tell: tells all ranks a text, and returns those of all.

    Raises:
        NotFiniteError: one of the parts is not finite; all ranks raise it.
    """
    own = ""
    try:
        verify_weights(model)
    except NotFiniteError as error:
        own = str(error)
    if faults := [said for said in tell(own) if said]:
        raise NotFiniteError(faults[0])
