"""A traced model as a chain: what a later stage needs of an earlier one is carried along by those in between.

::

    piece 0   x      ->  h, e
    piece 1   h, e   ->  g, e        e only passes
    piece 2   g, e   ->  output
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx, nn
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from thinpipe.errors import SplitError


@dataclass(frozen=True)
class Value:
    """The name of something computed before; whatever else stands in its place is a constant."""

    name: str


@dataclass(frozen=True)
class Nesting:
    """How tensors are nested, in a form that may be compared, copied and pickled."""

    text: str

    @classmethod
    def of(cls, tree: Any) -> Nesting:
        """Reads the nesting of a tree."""
        return cls(treespec_dumps(tree_flatten(tree)[1]))

    def nest(self, leaves: Sequence[Any]) -> Any:
        """Nests leaves."""
        return tree_unflatten(leaves, treespec_loads(self.text))


@dataclass(frozen=True)
class Piece:
    """One stage of a program.

    Args:
        graph: its modules, with the model's names, and their order.
        name: that of what it computes.
        takes: the names of what enters it.
        arguments: what of that it is called with.
        items: names for the items of what it computes, if that is several things.
        gives: what leaves it.
        nesting: how the model nests what leaves the last piece; ``None`` for the others, which leave a tuple.
    """

    graph: fx.GraphModule
    name: str
    takes: tuple[str, ...]
    arguments: tuple[Any, ...]
    items: tuple[tuple[str, int], ...]
    gives: tuple[Any, ...]
    nesting: Nesting | None

    def run(self, values: tuple[Any, ...]) -> Any:
        """Makes of what enters the piece what leaves it."""
        known = dict(zip(self.takes, values, strict=True))
        known[self.name] = computed = self.graph(*_found(self.arguments, known))
        known.update((name, computed[index]) for name, index in self.items)
        leaving = _found(self.gives, known)
        return tuple(leaving) if self.nesting is None else self.nesting.nest(leaving)


def _found(wanted: Sequence[Any], known: Mapping[str, Any]) -> list[Any]:
    return [known[each.name] if isinstance(each, Value) else each for each in wanted]


@dataclass(frozen=True)
class Program:
    """A traced model.

    Args:
        whole: the graph in which every stage is one module.
    """

    whole: fx.GraphModule

    @classmethod
    def traced(cls, model: nn.Module, at: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
        """Traces a model in the mode in which it is.

        Raises:
            SplitError: that cannot be done, or it does not give a stage for each name.
        """
        whole = _trace(model, at, args, kwargs)
        graphs = [child for child in whole.children() if isinstance(child, fx.GraphModule)]
        _verify_stages(graphs, at)
        # The first graph would take the model's arguments, and not their leaves.
        graphs[0].graph.set_codegen(fx.graph.CodeGen())
        graphs[0].recompile()
        graphs[0].__dict__.pop("_in_spec", None)
        for graph in graphs:
            _forget_origins(graph)
            _keep_layers(graph, model)
            _forget_constants(graph, model)
            _share_state(graph, model)
        return cls(whole)

    @property
    def text(self) -> str:
        """Everything that the tracing has decided; two programs with one text compute the same."""
        graphs = [(name, module.graph) for name, module in self.whole.named_modules() if hasattr(module, "graph")]
        return "\n".join(f"{name}: {graph}" for name, graph in graphs)

    def sharing(self, other: Program) -> Program:
        """Gives the modules of this program the parameters and buffers of another's, so that there are none twice."""
        twins = dict(other.whole.named_modules())
        for name, module in self.whole.named_modules():
            twin = twins.get(name)
            theirs = set() if twin is None else {*twin._parameters, *twin._buffers}
            if not {*module._parameters, *module._buffers} <= theirs:
                raise SplitError(f"'{name}' uses other weights in evaluation than in training; rewrite its forward")
            if twin is not None:
                module._parameters, module._buffers = twin._parameters, twin._buffers
        return self

    def pieces(self, nesting: Nesting) -> list[Piece]:
        """Makes a chain of the stages.

        Args:
            nesting: how the model nests its outputs.
        """
        nodes = list(self.whole.graph.nodes)
        calls = [node for node in nodes if node.op == "call_module"]
        graphs = [self.whole.get_submodule(call.target) for call in calls]
        made = {node: -1 for node in nodes if node.op == "placeholder"} | {node: j for j, node in enumerate(calls)}
        items: list[list[tuple[str, int]]] = [[] for _ in calls]
        for node in nodes:
            if node.op == "call_function" and node.target is operator.getitem and node.args[0] in calls:
                j = calls.index(node.args[0])
                items[j].append((node.name, node.args[1]))
                made[node] = j
        (end,) = (node for node in nodes if node.op == "output")
        outputs = end.args[0] if isinstance(end.args[0], (tuple, list)) else (end.args[0],)
        uses = [(j, node) for j, call in enumerate(calls) for node in call.args if isinstance(node, fx.Node)]
        uses += [(len(calls), node) for node in outputs if isinstance(node, fx.Node)]
        crossing = [
            [node for node in made if made[node] < j and any(user >= j and used is node for user, used in uses)]
            for j in range(1, len(calls))
        ]
        entering = [[node for node in nodes if node.op == "placeholder"], *crossing]
        return [
            Piece(
                graph=cast(fx.GraphModule, graphs[j]),
                name=call.name,
                takes=tuple(node.name for node in entering[j]),
                arguments=_named(call.args),
                items=tuple(items[j]),
                gives=_named(outputs if call is calls[-1] else crossing[j]),
                nesting=nesting if call is calls[-1] else None,
            )
            for j, call in enumerate(calls)
        ]


def _named(nodes: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(Value(node.name) if isinstance(node, fx.Node) else node for node in nodes)


def _trace(model: nn.Module, at: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.GraphModule:
    from torch.distributed.pipelining import SplitPoint, pipeline

    try:
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")  # of PyTorch's, about itself
            return pipeline(model, args, kwargs, split_spec=dict.fromkeys(at, SplitPoint.BEGINNING)).split_gm
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())[:400]
        raise SplitError(
            f"{type(model).__name__} cannot be traced: {reason}. Write it as an nn.Sequential, or as a list of stages: "
            "any modules, each of which takes what the one before it returns"
        ) from error
    finally:
        # It has marked the modules by forwards of their own.
        for name in at:
            for mark in ("forward", "_orig_forward"):
                model.get_submodule(name).__dict__.pop(mark, None)


def _verify_stages(graphs: Sequence[fx.GraphModule], at: Sequence[str]) -> None:
    if len(graphs) != len(at) + 1:
        raise SplitError(
            f"{len(at)} names make {len(at) + 1} stages, but the model was cut into {len(graphs)}: "
            f"{', '.join(at)} must each run once, and something must run before the first"
        )
    for j, name in enumerate(at):
        try:
            graphs[j + 1].get_submodule(name)
        except AttributeError:
            raise SplitError(f"{', '.join(at)} are not in the order in which they run: '{name}' is not") from None


def _plain(name: str) -> str:
    """Names the module of a call that is not its first: ``a.relu@1`` is ``a.relu``."""
    return ".".join(part.split("@")[0] for part in name.split("."))


def _keep_layers(graph: fx.GraphModule, model: nn.Module) -> None:
    """Puts PyTorch's own layers back where the tracing has put graphs of them: they have modes, hooks and options."""
    for name, module in list(graph.named_modules()):
        if not name or not _is_plain_layer(model, _plain(name)):
            continue
        traced = getattr(module, "graph", None)
        if traced is None or not _is_unary(traced):
            continue
        parent, _, last = name.rpartition(".")
        graph.get_submodule(parent)._modules[last] = model.get_submodule(_plain(name))


def _is_plain_layer(model: nn.Module, name: str) -> bool:
    try:
        layer = model.get_submodule(name)
    except AttributeError:
        return False
    return type(layer).__module__.startswith("torch.nn.modules.") and not list(layer.children())


def _is_unary(graph: fx.Graph) -> bool:
    """Tells whether a graph makes one thing of one thing."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    (end,) = (node for node in graph.nodes if node.op == "output")
    return len(inputs) == 1 and isinstance(end.args[0], fx.Node)


def _forget_origins(graph: fx.GraphModule) -> None:
    """Drops what a graph remembers of its tracing: fake tensors and stacks, which nobody needs."""
    for module in graph.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.clear()
    graph.meta.clear()


def _share_state(graph: fx.GraphModule, model: nn.Module) -> None:
    """Puts the model's own parameters and buffers in their places: the tracer copies one that several stages use."""
    parameters, buffers = (
        dict(named(remove_duplicate=False)) for named in (model.named_parameters, model.named_buffers)
    )
    for path, module in graph.named_modules():
        for places, own in ((module._parameters, parameters), (module._buffers, buffers)):
            for name in places:
                found = own.get(f"{path}.{name}" if path else name)
                if found is not None:
                    places[name] = found


def _forget_constants(graph: nn.Module, model: nn.Module) -> None:
    """Keeps tensors that the tracing has found, and buffers that the model does not save, out of ``state_dict``."""
    saved = model.state_dict()
    for name, module in graph.named_modules():
        for key in module._buffers:
            if (f"{name}.{key}" if name else key) not in saved:
                module._non_persistent_buffers_set.add(key)
