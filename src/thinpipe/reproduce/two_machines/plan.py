"""What is measured of two machines, and how: rows that are recorded in the same way are not measured again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinpipe.bench.record import Record
from thinpipe.errors import ThinpipeError
from thinpipe.reproduce.two_machines.client import SCHEDULE
from thinpipe.reproduce.two_machines.documents import step_size
from thinpipe.reproduce.two_machines.row import Row
from thinpipe.reproduce.two_machines.wire import ADDRESS, Wire
from thinpipe.reproduce.two_machines.work import Work

BENCH = "two-machines"
WARM_UP = 3
"""A process that keeps its memory has asked for all of it after a few batches, and a GPU has loaded its kernels."""
_NEEDED = 2
"""Cores that a server with a GPU is left: one from which it launches, one for what both of them send."""


class ReproduceError(ThinpipeError, RuntimeError):
    """A row could not be measured; those before it are."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run.

    Args:
        rows: in order.
        tiny: whether the small model is trained.
        batch: rows of a batch.
        batches: how many of them count, after those that warm up.
        images: that are trained on, ``made-up`` or ``cifar10``.
        data_dir: the folder of data sets and weights; None for the usual places.
        device: of the server; None for a GPU, if there is one.
        client_threads: of the client's computation.
        server_threads: of the server's, on a CPU.
        seed: of weights and inputs.
    """

    rows: tuple[Row, ...]
    tiny: bool
    batch: int
    batches: int
    images: str
    data_dir: str | None
    device: str | None
    client_threads: int
    server_threads: int
    seed: int

    def work(self, row: Row, *, dry: bool = False) -> Work:
        """Tells what a row trains."""
        return Work(
            cut=row.cut,
            bottleneck=row.bottleneck,
            tiny=self.tiny,
            dry=dry,
            images=self.images,
            data_dir=self.data_dir,
            seed=self.seed,
        )


def threads(asked: int | None, *, shared: bool) -> tuple[int, int]:
    """Deals this machine's cores out to client and server.

    Args:
        asked: what the client is to have (default: half of them if they are shared, else all but two).
        shared: whether the server computes on them, too.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    client = asked or max(1, cores // 2 if shared else cores - _NEEDED)
    return client, max(1, cores - client) if shared else 1


def settings(plan: Plan, row: Row, wire: Wire) -> dict[str, Any]:
    """Lists what a row's figures depend on, apart from the machine; rows that are alike in this are the same row."""
    return {
        "bandwidth": row.bandwidth,
        "bits_per_second": row.rate,
        "wire": wire.name,
        "encrypted": wire.keys is not None,
        "cut": row.cut,
        "codec": row.codec,
        "bottleneck": row.bottleneck,
        "chunks": row.chunks,
        "lr": step_size(row.chunks),
        "schedule": SCHEDULE,
        "tiny": plan.tiny,
        "images": plan.images,
        "pixels": plan.work(row).pixels,
        "batch": plan.batch,
        "batches": plan.batches,
        "warm_up": WARM_UP,
        "device": plan.device,
        "client_threads": plan.client_threads,
        "server_threads": plan.server_threads if wire.name != ADDRESS else None,
        "seed": plan.seed,
    }


def recorded(plan: Plan, row: Row, wire: Wire, folder: Path) -> Record | None:
    """Finds a row that was measured before, in the same way.

    Raises:
        ReproduceError: it was measured in another way, and would be lost.
    """
    path = folder / BENCH / f"{row.name}.json"
    if not path.exists():
        return None
    record = Record.load(path)
    for name, now in settings(plan, row, wire).items():
        before = record.settings.get(name)
        if name != "batches" and before != now:
            raise ReproduceError(
                f"{path} was recorded with {name}={before}, and it is {now} now; choose another --output, or replace "
                "it with --again"
            )
    return record
