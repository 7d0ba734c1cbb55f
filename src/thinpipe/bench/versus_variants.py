"""What ``thinpipe bench pipeline-vs-dp`` times: in each rank, a training step that can be repeated, and its bytes.

==============  ============================================================================================
``alone``       one process, the whole batch; the others wait
``ddp``         ``DistributedDataParallel``, its share of the batch in each process; the others wait
``pipeline``    ``Pipeline`` with the model dealt out by name, with a codec at every cut or without
``torchgpipe``  ``GPipe`` of the package torchgpipe in the first process, with the cores of all; the others wait
==============  ============================================================================================

All train the same model from the same weights on rows of the same batch, and each step ends with its optimizer's.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from thinpipe.bench.documents import DDP, TORCHGPIPE
from thinpipe.bench.shapes import OPTIMIZERS, Shape, Whole, loss, optimizer_of, part_of
from thinpipe.bench.table import Row
from thinpipe.bench.versus_cut import Cut
from thinpipe.bench.versus_plan import ALONE, Training, Variant
from thinpipe.bench.workload import torchgpipes
from thinpipe.cutting import split
from thinpipe.runtime.pipeline import Pipeline
from thinpipe.train.synced_norm import sync_batch_norm

Trains: TypeAlias = Callable[[Any, Tensor], float | None]
"""Takes a step with a whole batch; returns this rank's part of the loss, None if it has none."""

_TIMEOUT, _START, _PATIENCE = 120.0, 300.0, 1800.0
"""Pipelines wait their turns beside others that keep every core busy, and for ranks that still build a large model."""


@dataclass(frozen=True)
class Engine:
    """What trains one or several variants, in one rank.

    Args:
        train: takes a step.
        sent: tells how many bytes this rank has sent since the beginning.
    """

    train: Trains
    sent: Callable[[], float]


@dataclass(frozen=True)
class Entry:
    """A variant in one rank.

    Args:
        step: trains on the variant's batch; returns this rank's part of the loss, None if it has none.
        sent: tells how many bytes this rank has sent since the beginning.
    """

    step: Callable[[], float | None]
    sent: Callable[[], float]


@dataclass(frozen=True)
class Seat:
    """What a variant is told of its place.

    Args:
        rank: of this process.
        world: how many there are.
        shape: the model.
        model: the model with its first weights, which every variant copies.
        inputs: of the largest batch, where this rank computes.
        targets: of the largest batch, there, too.
        training: how all train.
        devices: of all ranks.
        cores: those of all ranks, for torchgpipe; None for this rank's own.
    """

    rank: int
    world: int
    shape: Shape
    model: nn.Module
    inputs: Any
    targets: Tensor
    training: Training
    devices: Sequence[torch.device]
    cores: tuple[int, ...] | None

    @property
    def device(self) -> torch.device:
        """Of this rank."""
        return self.devices[self.rank]

    def optimizer(self, module: nn.Module, momentum: float) -> torch.optim.Optimizer:
        """Makes what the model is trained with; a momentum is SGD's alone."""
        return optimizer_of(OPTIMIZERS[self.shape.name], module.parameters(), momentum=momentum)


@contextmanager
def seated(variants: Sequence[Variant], seat: Seat, cuts: Mapping[str, Cut]) -> Iterator[dict[str, Entry]]:
    """Makes the steps of all variants, and cleans up behind them while the process group is still there.

    Variants that differ in their batch alone have one engine: a model with its optimizer's state fills a process.
    """
    engines: dict[Variant, Engine] = {}
    with ExitStack() as running:
        for each in variants:
            kind = replace(each, rows=0)
            if kind not in engines:
                engines[kind] = running.enter_context(_engine(kind, seat, cuts))
        yield {each.name: _entry(each, engines[replace(each, rows=0)], seat) for each in variants}


def ddp_bytes(model: nn.Module, world: int) -> float:
    """Computes what all ranks of ``DistributedDataParallel`` together send in a step.

    A ring, or halving and doubling, has every rank send ``2 (k - 1) / k`` of the gradients' bytes, and none can do with
    less. Buffers go from rank 0 to the others, once each.
    """
    gradients = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    return (world - 1) * (2 * gradients + buffers)


def _entry(variant: Variant, engine: Engine, seat: Seat) -> Entry:
    rows = slice(variant.rows)
    inputs, targets = part_of(seat.inputs, rows), seat.targets[rows]

    def step() -> float | None:
        value = engine.train(inputs, targets)
        _wait(seat.device)
        return value

    return Entry(step, engine.sent)


@contextmanager
def _engine(kind: Variant, seat: Seat, cuts: Mapping[str, Cut]) -> Iterator[Engine]:
    if kind.way == ALONE:
        yield _alone(seat)
    elif kind.way == DDP:
        yield _ddp(seat, kind.processes)
    elif kind.way == TORCHGPIPE:
        yield _torchgpipe(seat, cuts[kind.cut], kind.chunks)
    else:
        with _pipeline(seat, cuts[kind.cut], kind) as engine:
            yield engine


_IDLE = Engine(lambda *_: None, lambda: 0.0)


def _alone(seat: Seat) -> Engine:
    if seat.rank:
        return _IDLE
    module = Whole(copy.deepcopy(seat.model)).to(seat.device)
    return Engine(_training(module, seat.optimizer(module, seat.training.ddp_momentum)), lambda: 0.0)


def _ddp(seat: Seat, processes: int) -> Engine:
    # A group is made by all ranks, those that are not in it among them.
    group, norms = (distributed.new_group(range(processes)) for _ in range(2))
    if seat.rank >= processes:
        return _IDLE
    model = copy.deepcopy(seat.model).to(seat.device)
    if seat.training.synced:
        sync_batch_norm(model, norms)
    module = DistributedDataParallel(Whole(model), process_group=group)
    train = _training(module, seat.optimizer(module, seat.training.ddp_momentum))
    share, steps = ddp_bytes(seat.model, processes) / processes, 0

    def counted(inputs: Any, targets: Tensor) -> float | None:
        nonlocal steps
        steps += 1
        rows = len(targets) // processes
        own = slice(seat.rank * rows, (seat.rank + 1) * rows)
        value = train(part_of(inputs, own), targets[own])
        return None if value is None else value / processes

    return Engine(counted, lambda: steps * share)


def _training(module: nn.Module, optimizer: torch.optim.Optimizer) -> Trains:
    def train(inputs: Any, targets: Tensor) -> float:
        value = loss(module(inputs), targets)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value.item()

    return train


@contextmanager
def _pipeline(seat: Seat, where: Cut, kind: Variant) -> Iterator[Engine]:
    with Pipeline(
        split(copy.deepcopy(seat.model), at=where.at),
        chunks=kind.chunks,
        loss_fn=loss,
        schedule=seat.training.schedule,
        codec=kind.codec,
        grad_codec=kind.codec,
        map=where.ranks,
        device=seat.device,
        timeout=_TIMEOUT,
        patience=_PATIENCE,
        start_timeout=_START,
    ) as pipeline:
        optimizer = seat.optimizer(pipeline, seat.training.pipeline_momentum)
        last = where.ranks[-1]

        def train(inputs: Any, targets: Tensor) -> float | None:
            value = pipeline.step(inputs, targets)
            optimizer.step()
            optimizer.zero_grad()
            return value.item() if seat.rank == last else None

        def sent() -> float:
            if pipeline.statistics is None:
                return 0.0
            lanes = (lane.reading.sent for lane in pipeline.statistics.lanes if lane.outgoing)
            return sum(chain(lanes, [pipeline.statistics.tied.sent]))

        yield Engine(train, sent)


def _torchgpipe(seat: Seat, where: Cut, chunks: int) -> Engine:
    """Makes torchgpipe's pipe as whoever installs it has it: it recomputes all micro-batches but the last."""
    if seat.rank:
        return _IDLE
    model = copy.deepcopy(seat.model)
    assert isinstance(model, nn.Sequential)
    names = list(model._modules)
    ends = [*(names.index(name) for name in where.at), len(names)]
    balance = tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))
    row = Row(name=TORCHGPIPE, batch=chunks, chunks=chunks, balance=balance)
    places = [seat.devices[rank] for rank in where.ranks]
    module = torchgpipes(model, row, places)
    optimizer = seat.optimizer(module, seat.training.ddp_momentum)

    def train(inputs: Any, targets: Tensor) -> float:
        with _all_cores(seat):
            value = loss(module(inputs), targets.to(places[-1]))
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            for place in places:
                _wait(place)
            return value.item()

    return Engine(train, lambda: 0.0)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _all_cores(seat: Seat) -> Iterator[None]:
    """Gives this process the cores of all ranks, who wait, and threads for them."""
    if seat.cores is None or seat.device.type != "cpu":
        yield
        return
    own, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, seat.cores)
    torch.set_num_threads(len(seat.cores))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, own)
