"""One step of a distributed pipeline on one rank: its action list, the loss at the end, and its own gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from thinpipe.errors import BatchError
from thinpipe.runtime.ambient import Ambient
from thinpipe.runtime.graph import loosened, take_grad
from thinpipe.runtime.parcel import Edge, Grads, Parcel, back, there
from thinpipe.runtime.post import Post
from thinpipe.runtime.randomness import Randomness
from thinpipe.runtime.talk import Rows
from thinpipe.runtime.transfer import Mover, mark_ready
from thinpipe.runtime.worker import Worker
from thinpipe.schedule import Action, ActionList, Kind
from thinpipe.stages.microbatch import Batch, gather
from thinpipe.trace import NO_TRACE


@dataclass
class LastStage:
    """What the rank of the last stage does between a micro-batch's forward and its backward.

    Args:
        edge: out of the last stage.
        device: of the last stage.
        rows: of each micro-batch, and of all replicas.
        targets: of each micro-batch; None where nobody gave any.
        loss_fn: compares outputs with targets.
        scale: multiplies the weight that a loss goes backward with.
        randomness: what surrounds ``loss_fn``, which may draw as a stage may (default: nothing).
    """

    edge: Edge
    device: torch.device
    rows: Rows
    targets: list[Any] | None
    loss_fn: Callable[..., Tensor]
    scale: Callable[[Tensor], Tensor]
    randomness: Randomness | None = None
    losses: list[tuple[Tensor, float]] = field(default_factory=list)
    outputs: list[Parcel] = field(default_factory=list)

    @property
    def loss(self) -> Tensor | None:
        """This replica's part of the loss, once all micro-batches are through; None without targets."""
        if not self.losses:
            return None
        # A sum of many micro-batches in half precision would be off by more than one loss is.
        wide = torch.promote_types(self.losses[0][0].dtype, torch.float32)
        return torch.stack([(loss * share).reshape(()).to(wide) for loss, share in self.losses]).sum()

    def compare(self, i: int, output: Any) -> tuple[Tensor, Tensor]:
        """Computes the loss of a micro-batch; with it comes its weight by rows, which it goes backward with."""
        with nullcontext() if self.randomness is None else self.randomness.first(i, repeated=False):
            loss = self.loss_fn(output) if self.targets is None else self.loss_fn(output, self.targets[i])
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise BatchError(f"loss_fn must return one number, the mean over the rows, got {_shape(loss)}")
        share = self.rows.own[i] / self.rows.total
        self.losses.append((loss.detach(), share))
        return loss, self.scale(loss.new_full(loss.shape, share))

    def after_forward(self, i: int, post: Post, ambient: Ambient, *, train: bool) -> None:
        """Takes the output of a micro-batch that was computed without a graph, and sends a gradient back for it.

        It is computed once, here: a recomputation of the stage must not call ``loss_fn`` again.
        """
        parcel: Parcel = post.receive(there(self.edge, i))
        leaves = parcel.fetched(Mover(self.device))
        if self.targets is None and not train:
            self.outputs.append(Parcel(leaves, parcel.spec, parcel.wants_grad, {}))
            return
        wanted = [isinstance(x, Tensor) and asked for x, asked in zip(leaves, parcel.wants_grad, strict=True)]
        starts = [x.detach().requires_grad_() if asked else x for x, asked in zip(leaves, wanted, strict=True)]
        with ambient.computing(grad=train):
            output = tree_unflatten([loosened(x) for x in starts], parcel.spec)
            loss, weight = self.compare(i, output)
        if train and any(wanted):
            if loss.requires_grad:
                torch.autograd.backward(loss, weight)
            post.send(back(self.edge, i), Grads([take_grad(x) for x in starts], mark_ready([self.device])))

    def output(self) -> Any:
        """Puts the outputs of all micro-batches together; None if there are none."""
        if not self.outputs:
            return None
        leaves, layout = gather(
            [parcel.leaves for parcel in self.outputs], [parcel.spec for parcel in self.outputs], self.rows.own
        )
        return layout.nest(leaves)


def _shape(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


@dataclass
class RankStep:
    """One step of one rank.

    Args:
        workers: for each of the rank's stages.
        post: the rank's.
        ambient: the caller's surroundings.
        last: what is done at the end of the pipeline, on the rank that has it.
        doing: told what the rank is at.
    """

    workers: Mapping[int, Worker]
    post: Post
    ambient: Ambient
    last: LastStage | None
    doing: Callable[[Action], None]
    computed: float = 0.0

    def feed(self, batch: Batch) -> None:
        """Hands the first stage its micro-batches."""
        edge = Edge(-1, 0)
        for i, leaves in enumerate(batch.micro_batches()):
            ready = mark_ready(x.device for x in leaves if isinstance(x, Tensor))
            self.post.send(there(edge, i), Parcel(leaves, batch.spec, [False] * len(leaves), ready))

    def run(self, actions: ActionList, *, train: bool) -> None:
        """Executes the rank's actions in order."""
        with _outside_of_autocast(self.ambient):
            for action in actions:
                self._execute(action, train=train)

    def _execute(self, action: Action, *, train: bool) -> None:
        self.doing(action)
        self.post.check()
        began, stalled = time.perf_counter(), self.post.stalled
        worker = self.workers[action.stage]
        worker.execute(action, self.post)
        last = self.last if action.kind is Kind.FORWARD else None
        if last is not None and action.stage == last.edge.source and not worker.has_ended(action.micro):
            last.after_forward(action.micro, self.post, self.ambient, train=train)
        done = time.perf_counter()
        # An action first waits for what it needs, and then computes.
        began += self.post.stalled - stalled
        self.computed += done - began
        if self.post.tracer is not NO_TRACE:
            self.post.tracer.add("compute", str(action), began, done, action=str(action), step=self.post.step)

    def lend_gradients(self) -> None:
        """Has gradients of this step added where parameters have some already."""
        for worker in self.workers.values():
            if worker.aliases is not None:
                worker.aliases.lend_grads([True] * len(worker.aliases.parameters))

    def leave_gradients(self) -> None:
        """Adds the step's gradients to those of the parameters."""
        for worker in self.workers.values():
            if worker.aliases is None:
                continue
            for parameter, grad in worker.aliases.own_grads():
                parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)


@contextmanager
def _outside_of_autocast(ambient: Ambient) -> Iterator[None]:
    """Leaves the caller's autocast, which every forward enters anew: a backward must not be cast again.

    Cast weights are forgotten at the end. They would be out of date as soon as an optimizer moves the weights, which
    may well happen before the caller leaves autocast.
    """
    with ExitStack() as stack:
        for cast in ambient.autocasts:
            stack.enter_context(torch.autocast(cast.device_type, enabled=False))
        try:
            yield
        finally:
            if ambient.autocasts:
                torch.clear_autocast_cache()


def with_recomputations(actions: ActionList, recomputed: frozenset[int]) -> ActionList:
    """Puts a recomputation before each backward of stages that keep no activations.

    It waits for nobody: a stage recomputes while its gradient is still on the way.
    """
    found: ActionList = []
    for action in actions:
        if action.stage in recomputed and action.kind in (Kind.BACKWARD, Kind.INPUT):
            found.append(Action(Kind.RECOMPUTE, action.stage, action.micro))
        found.append(action)
    return found


def targets_of(targets: Any, rows: Sequence[int]) -> list[Any]:
    """Cuts the targets as the inputs were cut.

    Raises:
        BatchError: they have another number of rows.
    """
    batch = Batch.of(targets, len(rows))
    if sum(batch.rows) != sum(rows):
        raise BatchError(
            f"the inputs have {sum(rows)} rows, the targets {sum(batch.rows)}; step() takes one target for each row"
        )
    return [tree_unflatten(leaves, batch.spec) for leaves in batch.micro_batches()]


def moved(tree: Any, device: torch.device) -> Any:
    """Brings the tensors of a nesting to a device."""
    leaves, spec = tree_flatten(tree)
    return tree_unflatten([x.to(device) if isinstance(x, Tensor) else x for x in leaves], spec)
