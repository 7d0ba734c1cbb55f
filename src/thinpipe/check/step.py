"""One training step (forward, loss, backward, SGD with momentum), and all that can be seen of it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from thinpipe import Pipe
from thinpipe.check.subject import Subject

QUANTITIES = ("loss", "outputs", "input gradients", "gradients", "parameters", "buffers")
"""What is compared, in the order in which a step makes it; BatchNorm's statistics are buffers."""

Tensors: TypeAlias = dict[str, Tensor | None]


@dataclass(frozen=True)
class Outcome:
    """What one step left behind: for each quantity its tensors by name, on the CPU; ``None`` where there is none."""

    quantities: dict[str, Tensors]


def take_step(
    subject: Subject, model: nn.Module, forward: Callable[[Any], Any], *, after_backward: Callable[[], None]
) -> Outcome:
    """Trains the model for one step.

    Args:
        subject: where inputs and loss come from.
        model: the model whose parameters are trained.
        forward: computes the outputs for the whole batch.
        after_backward: called between the backward and the update.
    """
    inputs, leaves = subject.fresh_inputs()
    with subject.surroundings():
        outputs = forward(inputs)
        loss = subject.loss_of(outputs)
    loss.backward()
    after_backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if trained:
        torch.optim.SGD(trained, lr=subject.lr, momentum=0.9).step()
    flat, _ = tree_flatten_with_path(outputs)
    # A model that was traced has constants beside its buffers.
    buffers = {name for name, _ in subject.model.named_buffers()}
    return Outcome(
        {
            "loss": _seen([("loss", loss)]),
            "outputs": _seen((f"output{keystr(path)}", value) for path, value in flat),
            "input gradients": _seen((name, leaf.grad) for name, leaf in leaves.items()),
            "gradients": _seen((name, p.grad) for name, p in model.named_parameters() if p.requires_grad),
            "parameters": _seen(model.named_parameters()),
            "buffers": _seen((name, buffer) for name, buffer in model.named_buffers() if name in buffers),
        }
    )


def pipe_step(subject: Subject, pipe: Pipe) -> Outcome:
    """Trains a pipe for one step."""
    return take_step(subject, pipe, pipe, after_backward=lambda: None)


def _seen(named: Iterable[tuple[str, Any]]) -> Tensors:
    return {name: _kept(value) for name, value in named}


def _kept(value: Any) -> Tensor | None:
    if isinstance(value, (bool, int, float)):
        value = torch.tensor(value)
    if not isinstance(value, Tensor):
        return None
    # A copy, since the step goes on to change parameters in place.
    return value.detach().to("cpu", copy=True)
