"""Executes the actions of one stage: receive, compute, send.

::

    F   inputs -> [leaves -> layers -> outputs] -> sent on     the part in brackets is a graph of its own, kept until B
    F   inputs -> (layers, no graph) -> sent on                when the micro-batch will be recomputed: inputs are kept
    R   kept inputs -> [leaves -> layers -> outputs]           nothing is sent
    B   gradients of outputs -> the graph -> gradients of leaves, sent back; those of parameters gather in the aliases
    I   B without the gradients of parameters                  the graph is kept for them
    W   the graph -> gradients of parameters                   nothing is received or sent
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from thinpipe.codecs import Codec
from thinpipe.errors import RecomputeError, SkipUseError
from thinpipe.links import Closed
from thinpipe.runtime.ambient import Ambient
from thinpipe.runtime.buffers import BufferGuard, Snapshot
from thinpipe.runtime.crossing import AS_IT_IS, Crossing
from thinpipe.runtime.graph import Graph, is_leaf_of_graph, loosened, take_grad
from thinpipe.runtime.identity import Place, apart, copied, place, versions_of
from thinpipe.runtime.parameters import Aliases
from thinpipe.runtime.parcel import (
    Address,
    Coded,
    Edge,
    Grads,
    Parcel,
    back,
    can_have_grad,
    edges_into,
    edges_out_of,
    there,
)
from thinpipe.runtime.randomness import Randomness
from thinpipe.runtime.spent import Spent
from thinpipe.runtime.split_backward import WeightWork, input_backward
from thinpipe.runtime.thrift import Results
from thinpipe.runtime.transfer import Mover, mark_ready
from thinpipe.schedule import Action, Kind
from thinpipe.stages.compiled import compiled
from thinpipe.stages.phase import Phase, entered
from thinpipe.stages.skip import SkipStore, skips_in
from thinpipe.stages.split import Stage


class Link(Protocol):
    """Where parcels come from and go to; ``LocalLink`` between threads, ``Post`` between ranks."""

    def send(self, address: Address, parcel: Any, pack: Callable[[Any], Any] | None = None) -> None:
        """Leaves a parcel for whoever asks for the address; ``pack`` puts packets in the place of its tensors."""

    def receive(self, address: Address) -> Any:
        """Takes the parcel at the address, waiting for it if need be."""

    def check(self) -> None:
        """Raises ``Closed`` if the step has failed."""

    def dispatch(self) -> None:
        """Sends off what was left so far: the worker will be busy with a computation from now on."""


Ending: TypeAlias = Callable[[int, Any], tuple[Tensor, Tensor]]
"""Called with a micro-batch and its output; returns where the backward begins, and the gradient it begins with."""


@dataclass(frozen=True)
class Inputs:
    """What a stage received of one micro-batch, on its own device: one entry an edge, that of the stage before first.

    ``came_as`` is what each leaf was before it was decoded. ``stashed`` says that the stage before also stashed what it
    passed on.
    """

    leaves: list[list[Any]]
    came_as: list[list[Coded | str]]
    specs: list[TreeSpec]
    wants_grad: list[list[bool]]
    stashed: bool


@dataclass(frozen=True)
class Kept:
    """What a recomputation needs."""

    inputs: Inputs
    buffers: Snapshot
    results: Results | None


class Station:
    """What a stage has for the life of the pipe: streams for its copies, and a memory of what it was seen to do.

    Args:
        stage: the stage.
        crossings: the codecs of the edges between stages.
        thrifty: whether a recomputation repeats only what is cheap (default: everything).
    """

    def __init__(self, stage: Stage, crossings: Mapping[Edge, Crossing], *, thrifty: bool = False) -> None:
        self.stage = stage
        self.crossings = crossings
        self.thrifty = thrifty
        self.mover = Mover(stage.device)
        self.buffers = BufferGuard(stage.module)
        self.changes_inputs: bool | None = None
        self.spent = Spent()
        self.compute: Callable[[Any], Any] = stage.module

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Has the stage compute by what ``torch.compile`` makes of its layers."""
        self.compute = compiled(self.stage.module, *args, **kwargs)

    def unpacked(self, parcel: Parcel | Grads) -> list[Any]:
        """Brings what has come to the stage's device, as tensors."""
        began = time.perf_counter()
        leaves = parcel.fetched(self.mover)
        self.spent.decode += time.perf_counter() - began
        return leaves


class Worker:
    """Works for one stage in one step, from its first forward to its last backward.

    Args:
        station: the stage, and what it has from earlier steps.
        ambient: the caller's surroundings.
        randomness: what surrounds its forwards.
        recomputed: the micro-batches whose activations are not kept.
        wants_graph: whether the caller wants gradients at all.
        threads: the number of intra-op threads it may use on the CPU.
        ending: what the graphs of the last stage end in, a loss for instance (default: they end in the outputs).
    """

    def __init__(
        self,
        station: Station,
        *,
        ambient: Ambient,
        randomness: Randomness,
        recomputed: frozenset[int],
        wants_graph: bool,
        threads: int,
        ending: Ending | None = None,
    ) -> None:
        self.stage = station.stage
        self.doing: Action | None = None
        self.aliases = Aliases(self.stage.module) if wants_graph else None
        self.spent = station.spent
        self._station = station
        station.buffers.begin_step()
        self._ambient = ambient
        self._randomness = randomness
        self._recomputed = recomputed
        self._threads = threads
        self._ending = ending
        self._ins = edges_into(self.stage)
        self._outs = edges_out_of(self.stage)
        self._kept: dict[int, Kept] = {}
        self._graphs: dict[int, Graph] = {}
        self._owed: dict[int, WeightWork | None] = {}
        # How the gradients of what arrived will be packed.
        self._grad_codecs: dict[int, list[list[Codec | None]]] = {}
        self._untouched: dict[Place, Coded | str] = {}
        # For which leaves a gradient was asked: one comes back for exactly the edges that have any.
        self._asked: dict[int, list[list[bool]]] = {}
        # The gradients of the micro-batches that have come to their ending.
        self._ends: dict[int, Tensor] = {}

    def run(self, actions: Sequence[Action], link: Link, *, keep_graph: bool = False) -> None:
        """Executes actions in order, in the caller's surroundings.

        Args:
            actions: what to do.
            link: where parcels come from and go to.
            keep_graph: whether the same backward will be asked for again (default: no).
        """

        def execute() -> None:
            if torch.get_num_threads() != self._threads:
                torch.set_num_threads(self._threads)
            for action in actions:
                link.check()
                self.execute(action, link, keep_graph=keep_graph)

        self._ambient.run(execute, self.stage.device)

    def execute(self, action: Action, link: Link, *, keep_graph: bool = False) -> None:
        """Executes one action, wherever it is called."""
        self.doing = action
        try:
            if action.kind is Kind.FORWARD:
                self._forward(action.micro, link)
            elif action.kind is Kind.RECOMPUTE:
                self._recompute(action.micro, link)
            elif action.kind is Kind.WEIGHT:
                if (work := self._owed.pop(action.micro, None)) is not None:
                    link.dispatch()
                    work()
            else:
                # Who wants the backward again wants all of it: then W finds nothing left to do.
                split = action.kind is Kind.INPUT and not keep_graph
                self._backward(action.micro, link, keep_graph=keep_graph, split=split)
        except Closed:
            raise
        except BaseException as error:
            error.add_note(f"raised in {self.stage}, doing {action}")
            raise

    def has_ended(self, i: int) -> bool:
        """Tells whether the graph of a micro-batch goes on to the ending, and its output went nowhere."""
        return i in self._ends

    def _forward(self, i: int, link: Link) -> None:
        inputs = self._receive(i, link)
        trains = self.aliases is not None and (self.aliases.parameters or any(map(any, inputs.wants_grad)))
        if not trains:
            with entered(Phase.ORDINARY, i), self._randomness.first(i, repeated=False):
                outputs = self._compute(inputs.leaves, inputs, link, grad=False)
            asked = [[False] * len(tree_leaves(tree)) for tree in outputs]
        elif i in self._recomputed:
            outputs = self._checkpoint(i, inputs, link)
            asked = [[can_have_grad(x) for x in tree_leaves(tree)] for tree in outputs]
        else:
            with entered(Phase.ORDINARY, i), self._randomness.first(i, repeated=False):
                self._graphs[i], outputs = self._build(inputs, link)
            if self._ending is not None:
                self._end(i, outputs[0], self._ending)
                return
            asked = [[edge is not None for edge in edges] for edges in self._graphs[i].outputs]
        self._asked[i] = asked
        self._send(i, outputs, asked, link)

    def _end(self, i: int, output: Any, ending: Ending) -> None:
        """Lets the graph go on to its ending, from which the gradient will come: nobody else gets the output."""
        with self._ambient.computing(grad=True):
            end, grad = ending(i, output)
        self._graphs[i].outputs = [[get_gradient_edge(end) if end.requires_grad else None]]
        self._ends[i] = grad

    def _receive(self, i: int, link: Link) -> Inputs:
        parcels = [link.receive(there(edge, i)) for edge in self._ins]
        pairs = zip(self._ins, parcels, strict=True)
        self._grad_codecs[i] = [self._grad_codecs_of(edge, parcel) for edge, parcel in pairs]
        return Inputs(
            leaves=[self._station.unpacked(parcel) for parcel in parcels],
            came_as=[[x if isinstance(x, Coded) else AS_IT_IS for x in parcel.leaves] for parcel in parcels],
            specs=[parcel.spec for parcel in parcels],
            wants_grad=[parcel.wants_grad for parcel in parcels],
            stashed=parcels[0].stashed,
        )

    def _grad_codecs_of(self, edge: Edge, parcel: Parcel) -> list[Codec | None]:
        crossing = self._station.crossings.get(edge)
        return [None if crossing is None else crossing.grad_codec(k, x) for k, x in enumerate(parcel.leaves)]

    def _compute(self, leaves: list[list[Any]], inputs: Inputs, link: Link, *, grad: bool) -> list[Any]:
        """Runs the layers on what stands for the inputs' leaves; returns the nesting that goes out on each edge."""
        trees = [tree_unflatten(values, spec) for values, spec in zip(leaves, inputs.specs, strict=True)]
        skips = {edge.skip: tree for edge, tree in zip(self._ins[1:], trees[1:], strict=True) if edge.skip is not None}
        store = SkipStore(skips)
        versions = [versions_of(values) for values in leaves]
        link.dispatch()
        with self._ambient.computing(grad=grad), skips_in(store):
            value = self._station.compute(trees[0])
        changed = [before != versions_of(values) for before, values in zip(versions, leaves, strict=True)]
        if inputs.stashed and changed[0]:
            raise SkipUseError(
                f"{self.stage} changes its input in place, but the stage before it stashed that same tensor as a skip; "
                "use inplace=False in its first layer"
            )
        self._untouched = {
            place(x): came_as
            for values, origins, touched in zip(leaves, inputs.came_as, changed, strict=True)
            for x, came_as in zip(values, origins, strict=True)
            if isinstance(x, Tensor) and not touched
        }
        return [value, *(store.stashed[edge.skip] for edge in self._outs if edge.skip is not None)]

    def _build(self, inputs: Inputs, link: Link) -> tuple[Graph, list[Any]]:
        """Runs the layers and keeps the graph."""
        assert self.aliases is not None
        leaves = [
            [x.detach().requires_grad_() if wanted else x for x, wanted in zip(values, wants, strict=True)]
            for values, wants in zip(inputs.leaves, inputs.wants_grad, strict=True)
        ]
        with torch.enable_grad():
            loose = [[loosened(x) for x in values] for values in leaves]
        with self.aliases.in_place():
            outputs = self._compute(loose, inputs, link, grad=True)
        edges = [
            [get_gradient_edge(x) if isinstance(x, Tensor) and x.requires_grad else None for x in tree_leaves(tree)]
            for tree in outputs
        ]
        return Graph(leaves, edges), outputs

    def _checkpoint(self, i: int, inputs: Inputs, link: Link) -> list[Any]:
        """Runs the layers without a graph, and keeps what it takes to run them again."""
        copies = self._station.changes_inputs is not False
        given = [[copied(x) for x in values] for values in inputs.leaves] if copies else inputs.leaves
        versions = [versions_of(values) for values in given]
        results = Results() if self._station.thrifty else None
        with (
            entered(Phase.CHECKPOINTING, i),
            self._randomness.first(i, repeated=True),
            self._station.buffers.watched() as snapshot,
            results.gathered() if results is not None else nullcontext(),
        ):
            outputs = self._compute(given, inputs, link, grad=False)
        changed = versions != [versions_of(values) for values in given]
        self._station.changes_inputs = changed or bool(self._station.changes_inputs)
        if changed and not copies:
            raise RecomputeError(
                f"{self.stage} changed its input in place, which it had left alone so far, too late to recompute this "
                "batch; run the step again"
            )
        # A recomputation sends nothing on.
        sources: list[list[Coded | str]] = [[AS_IT_IS] * len(values) for values in inputs.leaves]
        self._kept[i] = Kept(replace(inputs, came_as=sources), snapshot, results)
        return outputs

    def _recompute(self, i: int, link: Link) -> None:
        kept = self._kept.get(i)
        if kept is None:
            return
        assert self.aliases is not None
        self.aliases.check_unchanged()
        inputs = kept.inputs
        if self._station.changes_inputs:
            # The caller may want this backward again: keep what is kept.
            inputs = replace(inputs, leaves=[[copied(x) for x in values] for values in inputs.leaves])
        with (
            entered(Phase.RECOMPUTING, i),
            self._randomness.again(i),
            self._station.buffers.replayed(kept.buffers),
            kept.results.replayed() if kept.results is not None else nullcontext(),
        ):
            self._graphs[i], _ = self._build(inputs, link)

    def _backward(self, i: int, link: Link, *, keep_graph: bool, split: bool) -> None:
        arrived = self._arrived(i, link)
        graph = self._graphs.get(i)
        if not keep_graph or i in self._kept:
            self._graphs.pop(i, None)
        codecs = self._grad_codecs[i]
        if not keep_graph:
            for memory in (self._kept, self._asked, self._ends, self._grad_codecs):
                memory.pop(i, None)
        if graph is None:
            return
        pairs = [
            (edge, grad)
            for edges, grads in zip(graph.outputs, arrived, strict=True)
            for edge, grad in zip(edges, grads, strict=True)
            if edge is not None and grad is not None
        ]
        if pairs:
            edges, grads = zip(*pairs, strict=True)
            link.dispatch()
            if split:
                self._owed[i] = input_backward(edges, grads, chain.from_iterable(graph.leaves))
            else:
                torch.autograd.backward(edges, grads, retain_graph=keep_graph)
        for edge, leaves, chosen in zip(self._ins, graph.leaves, codecs, strict=True):
            if any(map(is_leaf_of_graph, leaves)):
                own = Grads([take_grad(x) for x in leaves], mark_ready([self.stage.device]))
                crossing = self._station.crossings.get(edge)
                pack = None if crossing is None else partial(crossing.pack_grads, codecs=chosen)
                link.send(back(edge, i), own, pack)

    def _arrived(self, i: int, link: Link) -> list[list[Tensor | None]]:
        """Gives the gradients of everything that the stage has returned, waiting for them if need be."""
        if i in self._ends:
            return [[self._ends[i]]]
        return [
            self._station.unpacked(link.receive(back(edge, i))) if any(asked) else [None] * len(asked)
            for edge, asked in zip(self._outs, self._asked[i], strict=True)
        ]

    def _send(self, i: int, outputs: list[Any], asked: list[list[bool]], link: Link) -> None:
        trees, shared = apart(outputs) if len(outputs) > 1 else (outputs, False)
        origins, self._untouched = self._untouched, {}
        for edge, tree, wants in zip(self._outs, trees, asked, strict=True):
            leaves, spec = tree_flatten(tree)
            leaves = [x.detach() if isinstance(x, Tensor) else x for x in leaves]
            parcel = Parcel.of(leaves, spec, wants, self.stage.device, stashed=shared and edge.skip is None)
            crossing = self._station.crossings.get(edge)
            came_as = [origins.get(place(x)) for x in leaves]
            link.send(there(edge, i), parcel, None if crossing is None else partial(crossing.pack, came_as=came_as))
