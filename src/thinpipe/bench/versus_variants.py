"""What ``thinpipe bench pipeline-vs-dp`` times: in each rank, a training step that can be repeated, and its bytes.

====================  ======================================================================================
``alone``             one process, the whole batch; the others wait
``ddp``               ``DistributedDataParallel``, its share of the batch in each process
``even``, ``client``  ``Pipeline`` with the model dealt out so, tensors as they are
``even+CODEC``        the same with a codec at every cut, both ways
====================  ======================================================================================

All train the same model from the same weights on the same batch, and each step ends with its optimizer's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinpipe.bench.shapes import OPTIMIZERS, Shape, Whole, loss, optimizer_of, part_of
from thinpipe.bench.versus_cut import Cut
from thinpipe.cutting import split
from thinpipe.runtime.pipeline import Pipeline

ALONE, DDP = "alone", "ddp"
Step: TypeAlias = Callable[[], float | None]

_TIMEOUT, _START = 120.0, 300.0
"""Pipelines wait their turns beside others that keep every core busy, and for ranks that still build a large model."""


@dataclass(frozen=True)
class Entry:
    """A variant in one rank.

    Args:
        step: trains on the batch; returns this rank's part of the loss, None if it has none.
        sent: tells how many bytes this rank has sent since the beginning.
    """

    step: Step
    sent: Callable[[], float]


@dataclass(frozen=True)
class Seat:
    """What a variant is told of its place.

    Args:
        rank: of this process.
        world: how many there are.
        shape: the model.
        model: the model with its first weights, which every variant copies.
        inputs: of the whole batch.
        targets: of the whole batch.
        chunks: micro-batches of a pipeline.
        schedule: of a pipeline.
    """

    rank: int
    world: int
    shape: Shape
    model: nn.Module
    inputs: Any
    targets: Tensor
    chunks: int
    schedule: str


def name_of(manner: str, codec: str | None) -> str:
    """Names a pipeline."""
    return str(manner) if codec is None else f"{manner}+{codec}"


@contextmanager
def seated(name: str, seat: Seat, cuts: Mapping[str, Cut]) -> Iterator[Entry]:
    """Makes a variant's step, and cleans up behind it while the process group is still there."""
    if name == ALONE:
        yield _alone(seat)
    elif name == DDP:
        yield _ddp(seat)
    else:
        manner, _, codec = name.partition("+")
        with _pipeline(seat, cuts[manner], codec or None) as entry:
            yield entry


def ddp_bytes(model: nn.Module, world: int) -> float:
    """Computes what all ranks of ``DistributedDataParallel`` together send in a step.

    A ring, or halving and doubling, has every rank send ``2 (k - 1) / k`` of the gradients' bytes, and none can do with
    less. Buffers go from rank 0 to the others, once each.
    """
    gradients = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    return (world - 1) * (2 * gradients + buffers)


def _alone(seat: Seat) -> Entry:
    if seat.rank:
        return Entry(lambda: None, lambda: 0.0)
    module = Whole(copy.deepcopy(seat.model))
    return Entry(_training(seat, module, seat.inputs, seat.targets), lambda: 0.0)


def _ddp(seat: Seat) -> Entry:
    module = DistributedDataParallel(Whole(copy.deepcopy(seat.model)))
    rows = len(seat.targets) // seat.world
    own = slice(seat.rank * rows, (seat.rank + 1) * rows)
    step = _training(seat, module, part_of(seat.inputs, own), seat.targets[own])
    share, steps = ddp_bytes(seat.model, seat.world) / seat.world, 0

    def counted() -> float | None:
        nonlocal steps
        steps += 1
        value = step()
        return None if value is None else value / seat.world

    return Entry(counted, lambda: steps * share)


def _training(seat: Seat, module: nn.Module, inputs: Any, targets: Tensor) -> Step:
    optimizer = optimizer_of(OPTIMIZERS[seat.shape.name], module.parameters())

    def step() -> float:
        value = loss(module(inputs), targets)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value.item()

    return step


@contextmanager
def _pipeline(seat: Seat, where: Cut, codec: str | None) -> Iterator[Entry]:
    with Pipeline(
        split(copy.deepcopy(seat.model), at=where.at),
        chunks=seat.chunks,
        loss_fn=loss,
        schedule=seat.schedule,
        codec=codec,
        grad_codec=codec,
        map=where.ranks,
        device="cpu",
        timeout=_TIMEOUT,
        start_timeout=_START,
    ) as pipeline:
        optimizer = optimizer_of(OPTIMIZERS[seat.shape.name], pipeline.parameters())
        last = where.ranks[-1]

        def step() -> float | None:
            value = pipeline.step(seat.inputs, seat.targets)
            optimizer.step()
            optimizer.zero_grad()
            return value.item() if seat.rank == last else None

        def sent() -> float:
            if pipeline.statistics is None:
                return 0.0
            lanes = (lane.reading.sent for lane in pipeline.statistics.lanes if lane.outgoing)
            return sum(chain(lanes, [pipeline.statistics.tied.sent]))

        yield Entry(step, sent)
