"""A backward in two parts: the gradients of a stage's inputs at once, those of its weights later.

The stage before waits for the former, nobody for the latter. What tells them apart is the path, the part of a
micro-batch's graph that leads to an input::

    output <--- linear <--- relu <--- norm <--- linear <--- input          the path
                  |                    |          |
            weight, bias         weight, bias   weight, bias               what hangs off it

``I`` goes down the path alone: autograd asks an operation only for the gradients that somebody wants. The gradients
that arrive where weights hang off the path are kept, and ``W`` asks these operations, each by itself, for the rest.
Neither does what the other did. Weights that hang off no path at all wait for ``W`` as a whole; so does everything in a
stage whose inputs want no gradient.

Some weights have their gradients in ``I``, with the inputs:

* those that hang off the path in several places, being used twice: only the sum of their gradients is theirs, which
  hooks may look at and change;
* those below an ``autograd.Function`` written in Python, which makes all its gradients whether they are wanted or not;
* those of a batch norm, whose gradients are sums that its input's gradient needs as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

WeightWork: TypeAlias = Callable[[], None]
"""What is left to be done in ``W``; it can be called once, and lets go of the graph as it goes."""

_INDIVISIBLE = frozenset({"CheckpointFunctionBackward", "CompiledFunctionBackward"})
"""Nodes that refuse to be asked for some gradients only, or to keep the graph: reentrant checkpoints, torch.compile."""

_TOGETHER = frozenset({"NativeBatchNormBackward0", "CudnnBatchNormBackward0", "MiopenBatchNormBackward0"})
"""Nodes that compute their weights' gradients on the way to that of their input; asked twice, they do it twice."""

_MOST_GATHERED = 1 << 24
"""Bytes of gradients that may wait for others, beside those that the weights have."""


@dataclass
class _Place:
    """A place in the graph that weights hang off, and nowhere else.

    Args:
        node: the operation on the path; ``None`` for places that are no single operation.
        weights: the weights.
        ways: where the way to them begins, each with its number among the operation's gradients.
        arrived: the gradients of the operation's results, once they are known.
    """

    node: Node | None = None
    weights: list[GradientEdge] = field(default_factory=list)
    ways: list[tuple[int, GradientEdge]] = field(default_factory=list)
    arrived: tuple[Tensor | None, ...] = ()

    def keep(self, grads: tuple[Tensor | None, ...]) -> None:
        self.arrived = grads

    def ask(self) -> list[tuple[GradientEdge, Tensor]]:
        """Has the operation compute what is wanted, and returns it with the ways that it has yet to go."""
        if all(grad is None for grad in self.arrived):
            return []
        # Not by the engine: it would call hooks on the operation's results again, and look through all that is below.
        grads = self.node(*self.arrived)  # type: ignore[operator, misc]
        grads = grads if isinstance(grads, tuple) else (grads,)
        return [(edge, _fitted(grads[k], edge)) for k, edge in self.ways if grads[k] is not None]


class _Gathered:
    """Gradients on their way to weights; the engine is called for many at once, which takes it little longer."""

    def __init__(self) -> None:
        self._pairs: list[tuple[GradientEdge, Tensor]] = []
        self._weights: list[GradientEdge] = []
        self._bytes = 0

    def add(self, place: _Place) -> None:
        """Takes what a place is asked for."""
        pairs = place.ask()
        self._pairs += pairs
        self._weights += place.weights
        self._bytes += sum(grad.numel() * grad.element_size() for _, grad in pairs)
        if self._bytes > _MOST_GATHERED:
            self.deliver()

    def deliver(self) -> None:
        """Brings all of them to their weights."""
        if self._pairs:
            edges, grads = zip(*self._pairs, strict=True)
            torch.autograd.backward(edges, grads, inputs=self._weights)
        self._pairs, self._weights, self._bytes = [], [], 0


class _Asked(torch.autograd.Function):
    """Calls a function inside a backward: operations called there compute the gradients that this backward wants."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, function: Callable[[], None]) -> Tensor:
        ctx.function = function
        return token.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, None]:
        ctx.function()
        return None, None


def input_backward(edges: Sequence[GradientEdge], grads: Sequence[Tensor], leaves: Iterable[Any]) -> WeightWork | None:
    """Computes the gradients of a stage's inputs, into their ``.grad``, and returns what is left to do for its weights.

    Args:
        edges: where gradients enter the graph of the micro-batch.
        grads: the gradient for each.
        leaves: the inputs; only tensors that require a gradient get one.
    """
    whole = partial(torch.autograd.backward, edges, grads)
    inputs = {id(x) for x in leaves if isinstance(x, Tensor) and x.requires_grad}
    graph = _from_above(edge.node for edge in edges) if inputs else {}
    path = _leading_to(inputs, graph)
    if not path:
        return whole
    now, outputs = _Place(), _Place()
    places = _hang(graph, path, now, outputs, roots=[edge.node for edge in edges])
    if not (places or outputs.weights) or any(type(node).__name__ in _INDIVISIBLE for node in graph):
        whole()
        return None
    hooks = [place.node.register_prehook(place.keep) for place in places if place.node is not None]
    try:
        torch.autograd.backward(edges, grads, inputs=now.weights, retain_graph=True)
    finally:
        for hook in hooks:
            hook.remove()
    aside = [(edge, grad) for edge, grad in zip(edges, grads, strict=True) if edge.node not in path]
    return partial(_weight_backward, places, outputs.weights, aside)


def _weight_backward(
    places: list[_Place], weights: list[GradientEdge], aside: list[tuple[GradientEdge, Tensor]]
) -> None:
    """Computes the gradients of weights that hang off the path, and of those that gradients reach aside of it."""
    if weights:
        edges, grads = zip(*aside, strict=True)
        aside.clear()
        torch.autograd.backward(edges, grads, inputs=weights)
    wanted = [edge for place in places for _, edge in place.ways]
    # From above: no place keeps what is above it, so that is set free.
    places.reverse()

    def each() -> None:
        gathered = _Gathered()
        while places:
            gathered.add(places.pop())
        gathered.deliver()

    with torch.enable_grad():
        token = torch.empty(0, requires_grad=True, device="cpu")
        asked = _Asked.apply(token, each)  # type: ignore[no-untyped-call]
    torch.autograd.grad(asked, [get_gradient_edge(token), *wanted], asked, allow_unused=True)


def _from_above(roots: Iterable[Node]) -> dict[Node, list[Node]]:
    """Walks a graph: lists its nodes, each before those it leads to, and with them."""
    below: dict[Node, list[Node]] = {}
    finished: list[Node] = []
    todo = [(root, False) for root in roots]
    while todo:
        node, explored = todo.pop()
        if explored:
            finished.append(node)
        elif node not in below:
            below[node] = [following for following, _ in node.next_functions if following is not None]
            todo.append((node, True))
            todo.extend((following, False) for following in below[node])
    return {node: below[node] for node in reversed(finished)}


def _leading_to(inputs: set[int], graph: dict[Node, list[Node]]) -> set[Node]:
    path: set[Node] = set()
    for node, below in reversed(graph.items()):
        if not path.isdisjoint(below) or (_is_leaf(node) and id(node.variable) in inputs):  # type: ignore[attr-defined]
            path.add(node)
    return path


def _hang(
    graph: dict[Node, list[Node]], path: set[Node], now: _Place, outputs: _Place, *, roots: list[Node]
) -> list[_Place]:
    """Finds the place that each weight hangs off.

    Args:
        graph: from ``_from_above``.
        path: the nodes that lead to an input.
        now: is given the inputs, and the weights that cannot wait.
        outputs: is given the weights that hang off no path.
        roots: where gradients enter the graph.

    Returns:
        The places on the path that weights hang off, from above.
    """
    homes = {root: outputs for root in roots if root not in path}
    for node, below in graph.items():
        if node in path:
            homes[node] = now if _gives_all(node) else _Place(node)
        place = homes[node]
        for following in below:
            if following not in path:
                homes[following] = place if homes.get(following, place) is place else now
        if _is_leaf(node):
            place.weights.append(GradientEdge(node, 0))
    places = [homes[node] for node in graph if node in path and homes[node].weights and homes[node] is not now]
    later = _leading_to({id(edge.node.variable) for place in places for edge in place.weights}, graph)  # type: ignore[attr-defined]
    for place in places:
        assert place.node is not None
        place.ways = [
            (k, GradientEdge(following, nr))
            for k, (following, nr) in enumerate(place.node.next_functions)
            if following in later and following not in path
        ]
    return places


def _is_leaf(node: Node) -> bool:
    return type(node).__name__ == "AccumulateGrad"


def _gives_all(node: Node) -> bool:
    """Tells whether a node has the gradients of its weights when it has that of its input."""
    return _is_leaf(node) or isinstance(node, BackwardCFunction) or type(node).__name__ in _TOGETHER


def _fitted(grad: Tensor, edge: GradientEdge) -> Tensor:
    """Sums over what an operation broadcast, as the engine does between two operations."""
    shape = edge.node._input_metadata[edge.output_nr].shape
    return grad if grad.shape == shape else grad.sum_to_size(shape)
