"""Joins a step to the caller's autograd graph, by two nodes::

    inputs, parameters --> Enter --token--> Leave --> outputs

Going backward, ``Leave`` only lays the gradients of the outputs aside; ``Enter`` runs the stages and returns the
gradients of inputs and parameters, so that hooks, accumulation, DistributedDataParallel and ``torch.autograd.grad`` see
one function like any other.

There are two, because autograd runs a node whose outputs are on a GPU in that GPU's own thread, and a node that waited
there for stages that need the same thread would wait forever. ``Enter`` has a token on the CPU for its only output, so
it runs in the thread that called ``backward``.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Backward(Protocol):
    """The backward half of a step."""

    def output_grads(self, places: tuple[int, ...], grads: tuple[Tensor | None, ...]) -> None:
        """Lays the gradients of the outputs aside."""

    def input_grads(self, *, keep_graph: bool, accumulating: list[bool]) -> tuple[Tensor | None, ...]:
        """Runs the stages backward; returns the gradients of the inputs and of the parameters.

        Args:
            keep_graph: whether the same backward may be asked for again.
            accumulating: for each parameter, whether autograd will add to its ``.grad``.
        """


class Enter(torch.autograd.Function):
    """Where gradients leave the pipe: at its inputs and parameters."""

    @staticmethod
    def forward(ctx: Any, step: Backward, n_inputs: int, *tensors: Tensor) -> Tensor:
        ctx.step = step
        ctx.n_inputs = n_inputs
        token = torch.empty(0)
        # Saved for autograd's own complaints: about an input changed since, or a second backward through freed graphs.
        ctx.save_for_backward(token, *tensors[:n_inputs])
        return token

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        step = _taken_step(ctx)
        accumulating = [_accumulates(node) for node, _ in ctx.next_functions[ctx.n_inputs :]]
        return (None, None, *step.input_grads(keep_graph=_keeps_graph(), accumulating=accumulating))


class Leave(torch.autograd.Function):
    """Where gradients enter the pipe: at its outputs."""

    @staticmethod
    def forward(
        ctx: Any, token: Tensor, step: Backward, places: tuple[int, ...], *outputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.step = step
        ctx.places = places
        ctx.save_for_backward(token)
        ctx.set_materialize_grads(False)
        return tuple(output.detach() for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        _taken_step(ctx).output_grads(ctx.places, grads)
        return (torch.empty(0), None, None, *(None for _ in grads))


def _accumulates(node: torch.autograd.graph.Node | None) -> bool:
    """Tells whether the running backward will add to a leaf's ``.grad`` behind the node."""
    if node is None or type(node).__name__ != "AccumulateGrad":
        return False
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        return False  # autograd.grad was asked for this very leaf, and returns its gradient instead


def _keeps_graph() -> bool:
    """Tells whether the running backward was asked to retain the graph."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def _taken_step(ctx: Any) -> Backward:
    """Returns the step of a node, and forgets it unless the graph is kept: a step holds the batch.

    Reading the saved tensors makes autograd complain, in its own words, where it has something to complain about.
    """
    _ = ctx.saved_tensors
    step: Backward = ctx.step
    if not _keeps_graph():
        ctx.step = None
    return step
