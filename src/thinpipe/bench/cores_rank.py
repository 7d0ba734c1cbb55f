"""One stage of a cell on CPU cores, a process; run as a module, with its ``Assignment`` as the one argument.

It writes a line of JSON when it is ready, ``{"ready": true}``, and one for every order that it reads, an ``Order`` a
line: ``step`` is answered by ``{"loss": 6.9}`` once its optimizer is done, ``stage`` by ``{"forward": 0.1, "backward":
0.2}``, the seconds that its stage takes for a micro-batch by itself. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from enum import StrEnum

import torch
from torch import distributed

from thinpipe.bench.cores_stage import LoneStage
from thinpipe.bench.cores_work import drawn
from thinpipe.bench.rank_life import Say, live
from thinpipe.bench.table import Huang, Published, Row, Table
from thinpipe.bench.workload import Workload
from thinpipe.runtime.pipeline import Pipeline

_START = 300.0
"""Seconds to wait for the other ranks, each of which first loads torch and builds the whole network."""


class Order(StrEnum):
    """What a rank can be told to do."""

    STEP = "step"
    STAGE = "stage"


@dataclass(frozen=True)
class Assignment:
    """What a rank is to do.

    Args:
        rank: which stage it has.
        table: what all rows have in common; its rows do not travel.
        row: the cell, whose balance says how many ranks there are.
        schedule: of the pipeline.
        seed: of weights and data.
        core: the core it computes on (None: any).
        spare: the cores of the threads that carry its messages (empty: as its computation).
        reserve: MiB that it asks for before anything else, and gives back to its allocator.
        store: the file where ranks find each other.
        patience: seconds that a rank may stay at one action.
    """

    rank: int
    table: Table
    row: Row
    schedule: str
    seed: int
    core: int | None
    spare: tuple[int, ...]
    reserve: int
    store: str
    patience: float

    def text(self) -> str:
        """Writes it as an argument of a command line."""
        return json.dumps(asdict(replace(self, table=replace(self.table, rows=()))))

    @classmethod
    def read(cls, text: str) -> Assignment:
        """Reads what ``text`` wrote."""
        entries = json.loads(text)
        table, row = entries.pop("table"), entries.pop("row")
        row |= {name: tuple(row[name]) for name in ("sizes", "balance")}
        row["published"] = Published(**row["published"])
        row["huang"] = None if row["huang"] is None else Huang(**row["huang"])
        entries["spare"] = tuple(entries["spare"])
        return cls(table=Table(**(table | {"rows": ()})), row=Row(**row), **entries)


def run(assignment: Assignment, orders: Iterable[Order], say: Say) -> None:
    """Joins the other ranks, and does with them what the orders say."""
    torch.set_num_threads(1)
    if assignment.core is not None:
        # Threads stay where the thread was that began them.
        os.sched_setaffinity(0, set(assignment.spare) or {assignment.core})
    # A heap grows for many steps until it has a place for everything, messages included: a page fault for each page.
    torch.empty(assignment.reserve << 20, dtype=torch.uint8).fill_(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    row = assignment.row
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{assignment.store}",
        rank=assignment.rank,
        world_size=row.n,
        timeout=timedelta(seconds=_START),
    )
    workload = Workload(assignment.table, row, [torch.device("cpu")] * row.n)
    network, images, target = drawn(workload, assignment.seed)
    lone = LoneStage(workload, assignment.rank, network, images, target)
    with Pipeline(
        network,
        balance=row.balance,
        chunks=row.chunks,
        loss_fn=workload.loss,
        schedule=assignment.schedule,
        device="cpu",
        checkpoint=row.checkpoint,
        patience=assignment.patience,
        start_timeout=_START,
    ) as pipeline:
        del network  # of which the pipeline keeps this rank's part
        if assignment.core is not None:
            os.sched_setaffinity(0, {assignment.core})
        optimizer = workload.optimizer(pipeline.parameters())
        say({"ready": True})
        for order in orders:
            if order is Order.STAGE:
                say(asdict(lone.times()))
                continue
            loss = pipeline.step(images, target)
            optimizer.step()
            optimizer.zero_grad()
            say({"loss": float(loss)})


def _orders() -> Iterator[Order]:
    # Not by iterating over the input, which reads ahead.
    while line := sys.stdin.readline():
        yield Order(line.strip())


def _work(text: str, say: Say) -> None:
    run(Assignment.read(text), _orders(), say)


if __name__ == "__main__":
    live(_work, listens=True)
