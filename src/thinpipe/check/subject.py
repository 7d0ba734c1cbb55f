"""What is being checked: a model, a batch and a loss, the same for every run.

Nothing here is ever changed: a run gets a copy of the model and fresh leaves for its inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map, tree_map_only, tree_unflatten

from thinpipe.check.target import Target, UsageError
from thinpipe.stages.microbatch import NoChunk


@dataclass(frozen=True)
class Subject:
    """A model, a batch and a loss, and how they are trained for one step.

    Args:
        model: the model, in the type it is compared in.
        inputs: the batch, likewise.
        loss: makes a scalar of the outputs.
        devices: a device for every stage; the first is the "one device" of the comparison.
        lr: the learning rate of the one step.
        seed: what the generators are seeded with before every run.
        autocast: the type to autocast to; ``None`` for no autocast.
    """

    model: nn.Module
    inputs: Any
    loss: Callable[[Any], Tensor]
    devices: tuple[torch.device, ...]
    lr: float
    seed: int
    autocast: torch.dtype | None

    @property
    def one_device(self) -> torch.device:
        """Where the bare model runs."""
        return self.devices[0]

    def copied(self) -> nn.Module:
        """Copies the model, so that a run may train it.

        Raises:
            UsageError: it cannot be copied.
        """
        try:
            return copy.deepcopy(self.model)
        except Exception as error:
            raise UsageError(f"the model cannot be copied, and every run needs its own: {error}") from error

    def fresh_inputs(self) -> tuple[Any, dict[str, Tensor]]:
        """Makes the batch anew; returns it with the leaves, by name, in which its gradients will gather."""
        paths, spec = tree_flatten_with_path(self.inputs)
        leaves: dict[str, Tensor] = {}
        values: list[Any] = []
        for path, value in paths:
            tensor = value.tensor if isinstance(value, NoChunk) else value
            if isinstance(tensor, Tensor):
                tensor = tensor.detach().clone()
                if tensor.is_floating_point():
                    leaves[f"input{keystr(path)}"] = tensor.requires_grad_()
                    # The layers get a copy, since a first layer may work in place, which autograd forbids on a leaf.
                    tensor = tensor.clone()
            values.append(NoChunk(tensor) if isinstance(value, NoChunk) else tensor)
        return tree_unflatten(values, spec), leaves

    def loss_of(self, outputs: Any) -> Tensor:
        """Computes the loss where the batch came from, since that is where a loss function has its targets."""
        home = next((x.device for x in map(_bare, tree_leaves(self.inputs)) if isinstance(x, Tensor)), self.one_device)
        loss = self.loss(tree_map_only(Tensor, lambda x: x.to(home), outputs))
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise UsageError(f"loss_fn(outputs) must return a scalar tensor, got {shape}")
        if not loss.requires_grad:
            raise UsageError("the loss has no gradient: no output depends on a parameter or on a floating-point input")
        return loss.reshape(())

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Surrounds a forward and its loss: seeds the generators, and autocasts if that was asked for."""
        torch.manual_seed(self.seed)
        with ExitStack() as stack:
            for device_type in sorted({"cpu", *(device.type for device in self.devices)}) if self.autocast else []:
                stack.enter_context(torch.autocast(device_type, dtype=self.autocast))
            yield


def cast(target: Target, dtype: torch.dtype) -> Target:
    """Casts a target's model and the floating-point tensors of its inputs."""

    def leaf(value: Any) -> Any:
        if isinstance(value, NoChunk):
            return NoChunk(leaf(value.tensor))
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    return Target(target.model.to(dtype), tree_map(leaf, target.inputs), target.loss)


def squared_distance(outputs: Any) -> Tensor:
    """Measures how far all floating-point outputs are from a fixed pattern: the loss of those who bring none.

    The pattern has another value at every place. Plain squares would not do: a model that ends in a normalisation
    has the same sum of squares whatever its parameters are, and no gradients to compare; nor would they notice rows
    that changed places.
    """
    tensors = [x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.is_floating_point()]
    if not tensors:
        raise UsageError("the model returns no floating-point tensor; return (model, inputs, loss_fn) from the factory")
    return torch.stack([(x - _pattern(x)).square().mean() for x in tensors]).sum()


def _pattern(like: Tensor) -> Tensor:
    return torch.arange(like.numel(), device=like.device, dtype=torch.float64).cos().to(like.dtype).view(like.shape)


def _bare(value: Any) -> Any:
    return value.tensor if isinstance(value, NoChunk) else value
