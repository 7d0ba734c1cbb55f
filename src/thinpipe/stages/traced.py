"""Cuts a model that is no sequence, by the graph that ``torch.distributed.pipelining`` traces of it.

A graph has much written into it that a model decides anew in every call. So the model is traced in training, in
evaluation, and with one row more. Where the graphs of the two modes differ, a stage has both. Where one row more makes
another graph, micro-batches of any other size than the example's are refused, and inputs that differ from it in
anything but their rows always are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from thinpipe.errors import BatchError, SplitError
from thinpipe.stages.microbatch import Batch
from thinpipe.stages.names import listed
from thinpipe.stages.part import Part, settle
from thinpipe.stages.parts import Split
from thinpipe.stages.program import Nesting, Piece, Program


@dataclass(frozen=True)
class Call:
    """What a model is called with.

    Args:
        leaves: its arguments, out of their nesting.
        nesting: that of positional and named arguments.
    """

    leaves: list[Any]
    nesting: Nesting

    @classmethod
    def of(cls, inputs: Any) -> Call:
        """Reads inputs as a stage takes them: a tuple is several arguments, a dictionary several by their names."""
        args = () if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple) else (inputs,)
        tree = (args, inputs if isinstance(inputs, dict) else {})
        return cls(tree_leaves(tree), Nesting.of(tree))

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and the named arguments."""
        args, kwargs = self.nesting.nest(self.leaves)
        return tuple(args), dict(kwargs)

    @property
    def rows(self) -> int:
        """The number of rows of its tensors."""
        return sum(Batch.of(self.leaves, 1).rows)

    def with_one_row_more(self) -> Call:
        """Repeats the last row."""
        longer = [torch.cat([x, x[-1:]]) if isinstance(x, Tensor) and x.dim() else x for x in self.leaves]
        return Call(longer, self.nesting)

    def kinds(self) -> list[Any]:
        """Says of every leaf what a graph of this call takes for granted."""
        return [(x.dtype, tuple(x.shape[1:])) if isinstance(x, Tensor) else x for x in self.leaves]


class TracedStage:
    """Runs the graph of one stage.

    Args:
        training: the graph in training.
        evaluating: that in evaluation; it may be the same.
        example: what the model was traced with, for the first stage to compare; ``None`` for the others.
        any_rows: whether the graph is that of any number of rows.
    """

    def __init__(self, training: Piece, evaluating: Piece, example: Call | None, *, any_rows: bool) -> None:
        self._training, self._evaluating = training, evaluating
        self._expected = None if example is None else (example.nesting, example.kinds())
        self._rows = None if example is None or any_rows else example.rows

    def __call__(self, value: Any) -> Any:
        """Computes the stage."""
        body = self._training.graph
        settle(body)
        values = tuple(value) if self._expected is None else self._leaves(value)
        return (self._training if body.training else self._evaluating).run(values)

    def _leaves(self, value: Any) -> tuple[Any, ...]:
        call = Call.of(value)
        if (call.nesting, call.kinds()) != self._expected:
            assert self._expected is not None
            raise BatchError(
                f"the model was traced with inputs {self._expected[1]}, and got {call.kinds()}: types, sizes beside "
                "the rows, and values that are no tensors must be the example's; split it with another example"
            )
        if self._rows is not None and call.rows != self._rows:
            raise BatchError(
                f"the model was traced with {self._rows} rows, and got {call.rows}: its forward uses the number of "
                f"rows as a constant. Take batches of chunks x {self._rows} rows, or write -1 instead of x.shape[0]"
            )
        return tuple(call.leaves)


def cut_traced(model: nn.Module, at: Sequence[str], example: Any) -> Split:
    """Cuts a model at the names of its modules, by tracing it.

    Args:
        model: the model, on the device on which it will run: tensors that its forward makes are made there.
        at: the modules that begin a stage.
        example: inputs of the size of a micro-batch.

    Raises:
        SplitError: the model cannot be traced, or not be cut there.
    """
    _verify_names(model, at)
    call = Call.of(example)
    with _modes_kept(model):
        if not model.training:
            model.train()
        training = Program.traced(model, at, *call.arguments)
        longer = Program.traced(model, at, *call.with_one_row_more().arguments)
        model.eval()
        evaluating = Program.traced(model, at, *call.arguments)
        evaluating_longer = Program.traced(model, at, *call.with_one_row_more().arguments)
        nesting = _nesting(model, call)
    any_rows = training.text == longer.text and evaluating.text == evaluating_longer.text
    evaluating = training if training.text == evaluating.text else evaluating.sharing(training)
    stages = []
    for j, (piece, other) in enumerate(zip(training.pieces(nesting), evaluating.pieces(nesting), strict=True)):
        if piece.graph is not other.graph and not list(piece.graph.children()):
            raise SplitError(f"stage {j} has no module that could know whether the model trains; cut at another place")
        run = TracedStage(piece, other, call if j == 0 else None, any_rows=any_rows)
        stages.append(Part(piece.graph, run))
    return Split(model, stages, at)


def _verify_names(model: nn.Module, at: Sequence[str]) -> None:
    modules = dict(model.named_modules())
    for name in at:
        if not name or name not in modules:
            raise SplitError(f"there is no module '{name}'; there are {listed([each for each in modules if each])}")
        if "forward" in modules[name].__dict__:
            raise SplitError(f"the forward of '{name}' was replaced, and cannot be traced; split the model before that")


@contextmanager
def _modes_kept(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _nesting(model: nn.Module, call: Call) -> Nesting:
    """Finds how the model nests its outputs, by running it in evaluation, on copies of all that it might change."""
    args, kwargs = call.arguments
    state = dict(model.named_parameters()) | {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng():
        return Nesting.of(torch.func.functional_call(model, state, args, kwargs))
