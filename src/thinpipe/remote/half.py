"""One half of a U: its stages and their optimizer, which take a step and then keep it or take it back.

::

    attempt ──► prepared ──► commit        the optimizer moves the weights, and the step is part of the past
       │            │
       └────────────┴──────► take_back     nothing has happened: not to weights, buffers, or what codecs remember
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe.errors import PeerLost
from thinpipe.links import Closed
from thinpipe.links.net import Channel
from thinpipe.remote.cost import HalfCost
from thinpipe.remote.draws import Draws, StepDraws
from thinpipe.remote.offer import MakeOptimizer
from thinpipe.remote.saved import Snapshot, put_back, taken
from thinpipe.remote.terms import Terms
from thinpipe.remote.turns import Turns
from thinpipe.remote.wires import U, Wires
from thinpipe.runtime.ambient import Ambient
from thinpipe.runtime.assembly import as_sequence
from thinpipe.runtime.crossing import crossings, load_state, state_of
from thinpipe.runtime.parcel import Edge
from thinpipe.runtime.rank_step import LastStage, RankStep
from thinpipe.runtime.talk import Rows
from thinpipe.runtime.whereabouts import Doing
from thinpipe.runtime.worker import Station, Worker
from thinpipe.schedule import Action, ActionList, Kind, plan, validate
from thinpipe.stages.batchnorm import defer_batch_norm, deferred_layers, one_batch
from thinpipe.stages.microbatch import Batch
from thinpipe.stages.skip import verify_skippables
from thinpipe.stages.split import Stage, routes
from thinpipe.trace import NO_TRACE, AnyTracer

MOST = 1 << 29
"""Bytes of a message, unless somebody says otherwise."""


@dataclass(frozen=True)
class Task:
    """What a half is to do in one step.

    Args:
        number: counts everything that is done over one connection, training or not.
        step: the step of the training, which what is drawn depends on.
        rows: of each micro-batch.
        train: whether to go backward.
    """

    number: int
    step: int
    rows: list[int]
    train: bool


class _PoliteStep(RankStep):
    """A step that gives up its turn at the device after every action."""

    def _execute(self, action: Action, *, train: bool) -> None:
        try:
            super()._execute(action, train=train)
        finally:
            self.post.done()  # type: ignore[attr-defined]


class Half:
    """The stages of one side.

    Args:
        parts: its modules by the number of the stage: 0 and 2 on the client, 1 on the server.
        terms: what both sides agreed on.
        optimizer: makes the optimizer of all of them.
        device: where they are.
        most: the longest message to be accepted, in bytes (default: 512 MiB).
        turns: the queue at the device (default: nobody else computes there).
        tracer: told when what happened (default: nobody).

    Attributes:
        committed: how many steps are part of the past.
        prepared: whether the step after those is computed, and waits for ``commit`` or ``take_back``.
    """

    def __init__(
        self,
        parts: Mapping[int, nn.Module],
        terms: Terms,
        *,
        optimizer: MakeOptimizer,
        device: torch.device,
        most: int = MOST,
        turns: Turns | None = None,
        tracer: AnyTracer = NO_TRACE,
    ) -> None:
        self.terms, self.device, self.most = terms, device, most
        self.half = U[next(iter(parts))]
        self.module = nn.ModuleDict({_NAMES[j]: part for j, part in parts.items()})
        sequences = [as_sequence(parts[j]) if j in parts else nn.Sequential() for j in range(len(U))]
        verify_skippables(nn.Sequential(*sequences))
        self.module.to(device)
        if terms.deferred_batch_norm:
            defer_batch_norm(self.module)
        pops, stashes = routes(sequences)
        self._stages = [Stage(j, part, device, j, pops[j], stashes[j]) for j, part in enumerate(sequences)]
        self.optimizer = optimizer(self.module.parameters())
        self.committed, self.prepared = 0, False
        self.tracer = tracer
        self._turns = turns
        self._crossings = self._fresh_crossings()
        self._undo: tuple[list[Tensor], dict[str, Any]] | None = None
        self._plans: dict[tuple[str, int, int], ActionList] = {}
        self._draws = Draws(terms.seed, dict.fromkeys([*parts, len(U)], device))  # the loss draws as a stage would
        self._moving = 0.0
        self.wires: Wires | None = None
        self._plan(terms.chunks)  # whatever is wrong with the schedule is said now

    def _fresh_crossings(self) -> dict[Edge, Any]:
        choices = [{cut: pair[way] for cut, pair in enumerate(self.terms.codecs)} for way in (0, 1)]
        found = crossings(self._stages, *choices)
        # A skip from the first part to the last never leaves the client.
        return {edge: crossing for edge, crossing in found.items() if edge.skip is None}

    # -- a connection --------------------------------------------------------------------------------------------------

    def attach(self, channel: Channel) -> None:
        """Uses a connection from now on."""
        self.detach()
        # Stations and codecs are bound to the life of a connection; what codecs remember is not.
        memory = copy.deepcopy(state_of(self._crossings))
        self._crossings = self._fresh_crossings()
        load_state(self._crossings, memory)
        self._stations = {
            j: Station(stage, self._crossings) for j, stage in enumerate(self._stages) if U[j] == self.half
        }
        self.wires = Wires(
            channel,
            self.half,
            self._crossings,
            chunks=self.terms.chunks,
            device=self.device,
            most=self.most,
            turns=self._turns,
            tracer=self.tracer,
        )

    def detach(self) -> None:
        """Lets go of the connection."""
        if self.wires is not None:
            self.wires.close()
            self.wires = None

    # -- a step --------------------------------------------------------------------------------------------------------

    def attempt(self, task: Task, *, batch: Batch | None = None, last: LastStage | None = None) -> HalfCost:
        """Computes this half's part of a step, which is then prepared; in an evaluation, nothing stays of it.

        Args:
            task: what to do.
            batch: the inputs, on the client.
            last: what is done at the end of the pipeline, on the client.

        Raises:
            PeerLost, StallError, PacketError: the connection failed; nothing has happened here.
            Exception: whatever a module raised; nothing has happened here.
        """
        assert self.wires is not None and not self.prepared
        wires, post = self.wires, self.wires.post
        self._remember()
        try:
            if wires.failure is not None:
                raise Closed
            with ExitStack() as stack:
                if task.train:
                    stack.enter_context(one_batch(deferred_layers(self.module)))
                else:
                    stack.enter_context(_evaluating(self.module))
                post.begin(task.number)
                ambient = Ambient.capture([self.device])
                draws = self._draws.step(task.step, train=task.train)
                if last is not None:
                    last.randomness = draws.stages[len(U)]
                workers = self._workers(task, ambient, last, draws)
                step = _PoliteStep(workers, post, ambient, last, self._at(task))
                if batch is not None:
                    step.feed(batch)
                if task.train:
                    step.lend_gradients()
                step.run(self._actions(task), train=task.train)
                self._draws.settle(draws, train=task.train)
                post.flush()
                if task.train:
                    step.leave_gradients()
        except Closed:
            wires.close()  # nothing is packed any more, or codecs would remember what is taken back
            self.take_back()
            failure = wires.failure or PeerLost(f"the connection to {wires.channel.peer} was closed")
            raise failure.with_traceback(None) from None
        except BaseException:
            wires.close()
            self.take_back()
            raise
        spent = step.computed if post.times is None else post.times.take()
        computed, self._moving = spent + self._moving, 0.0
        if task.train:
            self.prepared = True
        else:
            self.take_back()
        return wires.lap(computed)

    def commit(self, *, lr: float | None = None, scale: float = 1.0) -> None:
        """Makes the prepared step part of the past.

        Args:
            lr: the learning rate, of all groups of the optimizer (default: what it has).
            scale: multiplies the gradients (default: 1).
        """
        assert self.prepared
        began = time.perf_counter()
        if lr is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
        if scale != 1.0:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._moving += time.perf_counter() - began
        self.prepared, self._undo = False, None
        self.committed += 1

    def take_back(self) -> None:
        """Undoes whatever an attempt has done."""
        self.module.zero_grad(set_to_none=True)
        self.prepared = False
        if self._undo is None:
            return
        (buffers, memory), self._undo = self._undo, None
        with torch.no_grad():
            for buffer, before in zip(self.module.buffers(), buffers, strict=True):
                buffer.copy_(before)
        for crossing in self._crossings.values():
            crossing.forget()
        load_state(self._crossings, memory)

    def squares(self) -> float:
        """Returns the sum of the squares of the prepared gradients."""
        grads = [p.grad for p in self.module.parameters() if p.grad is not None]
        return float(torch.nn.utils.get_total_norm(grads)) ** 2 if grads else 0.0

    def _remember(self) -> None:
        self._undo = ([buffer.clone() for buffer in self.module.buffers()], copy.deepcopy(state_of(self._crossings)))

    def _workers(self, task: Task, ambient: Ambient, last: LastStage | None, draws: StepDraws) -> dict[int, Worker]:
        final = len(U) - 1
        return {
            j: Worker(
                station,
                ambient=ambient,
                randomness=draws.stages[j],
                recomputed=frozenset(),
                wants_graph=task.train,
                threads=torch.get_num_threads(),
                ending=last.compare if last is not None and j == final else None,
            )
            for j, station in self._stations.items()
        }

    def _at(self, task: Task) -> Any:
        assert self.wires is not None
        where = self.wires.where
        return lambda action: where.at(Doing(action, task.step))

    def _actions(self, task: Task) -> ActionList:
        own = self._plan(len(task.rows))
        return own if task.train else [action for action in own if action.kind is Kind.FORWARD]

    def _plan(self, m: int) -> ActionList:
        # Another connection may have brought other terms: two halves with different plans would wait for each other.
        key = (self.terms.schedule, self.terms.ahead, m)
        if key not in self._plans:
            job, lists = plan(self.terms.schedule, len(U), m, U, ahead=self.terms.ahead)
            validate(job, lists)
            self._plans[key] = lists[self.half]
        return self._plans[key]

    # -- the past ------------------------------------------------------------------------------------------------------

    def snapshot(self, *, copy: bool) -> Snapshot:
        """Takes a snapshot of what is committed; see ``taken``."""
        assert not self.prepared
        return taken(self.committed, self.module, self.optimizer, state_of(self._crossings), copy=copy)

    def go_back(self, snapshot: Snapshot) -> None:
        """Goes to where a snapshot was taken.

        Raises:
            CheckpointError: it is of another model or optimizer.
        """
        self.take_back()
        memory = put_back(snapshot, self.module, self.optimizer)
        for crossing in self._crossings.values():
            crossing.forget()
        load_state(self._crossings, memory)
        self.committed = snapshot.step


_NAMES = {0: "first", 1: "middle", 2: "last"}


def rows_of(task: Task) -> Rows:
    """Tells how the batch of a task is cut."""
    return Rows(task.rows, sum(task.rows))


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    modes = {each: each.training for each in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for each, training in modes.items():
            each.training = training
