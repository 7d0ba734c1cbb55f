"""What "one device" means for a model.

Most models treat every row of a batch by itself, and for them it is the bare model on the whole batch. A BatchNorm in
training normalises by the rows it sees together, and in a pipe those are the rows of a micro-batch: by definition, not
by mistake. For such a model one device runs the very same micro-batches one after the other, and the loss is still
that of all outputs put together::

    WholeBatch        model(batch)                                          -> loss
    MicroBatches      model(rows 0..3), model(rows 4..7), ... -> together   -> loss
    DeferredBatches   the same, but running statistics move once, by the whole batch
"""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from thinpipe.check.step import Outcome, take_step
from thinpipe.check.subject import Subject
from thinpipe.cutting import run_whole
from thinpipe.stages.microbatch import Batch, gather


class Reference(Protocol):
    """A way to take a step on one device."""

    @property
    def words(self) -> str:
        """Says what one device does."""

    def step(self, subject: Subject, model: nn.Module) -> Outcome:
        """Trains the bare model for one step."""


@dataclass(frozen=True)
class WholeBatch:
    """The bare model on the whole batch."""

    words: str = "whole batch"

    def step(self, subject: Subject, model: nn.Module) -> Outcome:
        """Trains the bare model for one step."""
        model.to(subject.one_device)
        return take_step(subject, model, lambda inputs: whole(subject, model, inputs), after_backward=lambda: None)


@dataclass(frozen=True)
class MicroBatches:
    """The bare model on the micro-batches of a pipe, one after the other.

    Args:
        chunks: into how many the batch is cut.
    """

    chunks: int
    words: str = "same micro-batches"

    def step(self, subject: Subject, model: nn.Module) -> Outcome:
        """Trains the bare model for one step."""
        model.to(subject.one_device)
        return take_step(
            subject, model, lambda inputs: one_by_one(subject, model, inputs, self.chunks), after_backward=lambda: None
        )


@dataclass(frozen=True)
class DeferredBatches:
    """Like ``MicroBatches``, with the running statistics of BatchNorm moved once, by the whole batch.

    The BatchNorm that runs first sees the same rows however they are cut, so its statistics are those of a forward of
    the whole batch. What the others see was normalised by micro-batches before: theirs are what the plain layer makes
    of all its inputs at once.

    Args:
        chunks: into how many the batch is cut.
    """

    chunks: int
    words: str = "same micro-batches, deferred"

    def step(self, subject: Subject, model: nn.Module) -> Outcome:
        """Trains the bare model for one step."""
        model.to(subject.one_device)
        uncut = copy.deepcopy(model)
        seen = _Seen(model)
        outcome = take_step(
            subject,
            model,
            lambda inputs: one_by_one(subject, model, inputs, self.chunks, seen),
            after_backward=seen.move_once,
        )
        if seen.first is not None:
            inputs, _ = subject.fresh_inputs()
            with torch.no_grad(), subject.surroundings():
                whole(subject, uncut, inputs)
            prefix = f"{seen.first}." if seen.first else ""
            for name, buffer in uncut.get_submodule(seen.first).named_buffers():
                outcome.quantities["buffers"][prefix + name] = buffer.detach().to("cpu", copy=True)
        return outcome


class _Seen:
    """The inputs of every BatchNorm, by micro-batch and call; and what its statistics were before."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = {name: layer for name, layer in model.named_modules() if _is_tracking(layer)}
        self._before = {name: copy.deepcopy(layer._buffers) for name, layer in self._layers.items()}
        self._inputs: dict[str, dict[int, list[Tensor]]] = {name: defaultdict(list) for name in self._layers}
        self._hooks = [
            layer.register_forward_pre_hook(lambda _, args, name=name: self._note(name, args[0]))
            for name, layer in self._layers.items()
        ]
        self._calls = dict.fromkeys(self._layers, 0)
        self.first: str | None = None

    def next_micro_batch(self) -> None:
        """Begins to count calls anew."""
        self._calls = dict.fromkeys(self._layers, 0)

    def _note(self, name: str, value: Tensor) -> None:
        self.first = name if self.first is None else self.first
        self._inputs[name][self._calls[name]].append(value.detach().clone())
        self._calls[name] += 1

    def move_once(self) -> None:
        """Sets the statistics back and moves them as one forward of the whole batch would: once for every call."""
        for hook in self._hooks:
            hook.remove()
        with torch.no_grad():
            for name, layer in self._layers.items():
                for key, old in self._before[name].items():
                    if old is not None:
                        layer.get_buffer(key).copy_(old)
                for inputs in self._inputs[name].values():
                    layer(torch.cat(inputs))


def whole(subject: Subject, model: nn.Module, inputs: Any) -> Any:
    """Runs the bare model on the whole batch."""
    return run_whole(model, _on(subject.one_device, Batch.of(inputs, 1).whole()))


def one_by_one(subject: Subject, model: nn.Module, inputs: Any, chunks: int, seen: _Seen | None = None) -> Any:
    """Runs the bare model on one micro-batch after the other, and puts the outputs together."""
    batch = Batch.of(inputs, chunks)
    columns = [leaf.value.split(batch.rows) if leaf.cut else [leaf.value] * len(batch.rows) for leaf in batch.leaves]
    outputs = []
    for i in range(len(batch.rows)):
        if seen is not None:
            seen.next_micro_batch()
        micro = tree_unflatten([column[i] for column in columns], batch.spec)
        outputs.append(tree_flatten(run_whole(model, _on(subject.one_device, micro))))
    leaves, layout = gather([values for values, _ in outputs], [spec for _, spec in outputs], batch.rows)
    return layout.nest(leaves)


def mixing_layers(model: nn.Module) -> list[str]:
    """Lists the normalisations that see a micro-batch where one device sees the batch."""
    return [
        name
        for name, layer in model.named_modules()
        if (isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None))
        or (isinstance(layer, _InstanceNorm) and layer.training and layer.running_mean is not None)
    ]


def _is_tracking(layer: nn.Module) -> bool:
    return isinstance(layer, _BatchNorm) and layer.training and layer.running_mean is not None


def _on(device: torch.device, tree: Any) -> Any:
    return tree_map_only(Tensor, lambda x: x.to(device), tree)
