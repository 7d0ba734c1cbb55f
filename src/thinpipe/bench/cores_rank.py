"""One stage of a cell on CPU cores, a process; run as a module, with its ``Assignment`` as the one argument.

It writes a line of JSON when it is ready, ``{"loss": null}``, and takes a step for every line it reads, answered by
``{"loss": 6.9}`` once its optimizer is done. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TypeAlias

import torch
from torch import distributed

from thinpipe.bench.cores_work import drawn
from thinpipe.bench.rank_life import Say, live
from thinpipe.bench.table import Published, Row, Table
from thinpipe.bench.workload import Workload
from thinpipe.runtime.pipeline import Pipeline

_START = 300.0
"""Seconds to wait for the other ranks, each of which first loads torch and builds the whole network."""

Tell: TypeAlias = Callable[[float | None], None]


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
        entries["spare"] = tuple(entries["spare"])
        return cls(table=Table(**(table | {"rows": ()})), row=Row(**row), **entries)


def run(assignment: Assignment, orders: Iterable[str], tell: Tell) -> None:
    """Joins the other ranks, and takes a step with them for every order."""
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
        tell(None)
        for _ in orders:
            loss = pipeline.step(images, target)
            optimizer.step()
            optimizer.zero_grad()
            tell(float(loss))


def _lines() -> Iterator[str]:
    # Not by iterating over the input, which reads ahead.
    while line := sys.stdin.readline():
        yield line


def _work(text: str, say: Say) -> None:
    run(Assignment.read(text), _lines(), lambda loss: say({"loss": loss}))


if __name__ == "__main__":
    live(_work, listens=True)
