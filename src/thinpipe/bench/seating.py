"""Where the processes of a benchmark sit, and how they find each other: cores, threads, and a group over gloo."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from thinpipe.bench.cores_ranks import own_cores

_PATIENCE = timedelta(seconds=1800)
"""For the others to begin, and in every turn in which this process waits for one that computes alone."""


@dataclass(frozen=True)
class Seating:
    """The place of one process among others.

    Args:
        rank: its number.
        world: how many there are.
        cores: those it stays on (None: any).
        threads: how many it computes with.
        store: the file where they find each other.
    """

    rank: int
    world: int
    cores: tuple[int, ...] | None
    threads: int
    store: str

    @classmethod
    def read(cls, entries: dict[str, Any]) -> Seating:
        """Reads what ``asdict`` and JSON made of one."""
        cores = entries["cores"]
        return cls(**(entries | {"cores": None if cores is None else tuple(cores)}))

    def take(self, backend: str = "gloo") -> None:
        """Settles this process, and joins the others."""
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)  # before there are other threads, which stay where this one is
        torch.set_num_threads(self.threads)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        distributed.init_process_group(
            backend, init_method=f"file://{self.store}", rank=self.rank, world_size=self.world, timeout=_PATIENCE
        )


def seatings(world: int, threads: int, store: str) -> list[Seating]:
    """Gives every process as many cores of its own as it has threads, where there are enough for all."""
    cores = own_cores(world * threads)

    def own(rank: int) -> tuple[int, ...] | None:
        return tuple(cores[rank * threads : (rank + 1) * threads]) if cores else None

    return [Seating(rank, world, own(rank), threads, store) for rank in range(world)]


def gpus_of(world: int) -> tuple[list[torch.device], str]:
    """Gives every process a GPU, and names the group's backend: NCCL wants a GPU for each, gloo lets them share."""
    count = torch.cuda.device_count()
    backend = "cpu:gloo,cuda:nccl" if world <= count else "gloo"
    return [torch.device("cuda", rank % count) for rank in range(world)], backend


def slowest(work: Callable[[], None]) -> float:
    """Times something from when all ranks are ready to when the last of them is done."""
    summed(0.0)  # a barrier among CPUs; that of a group which has GPUs as well would wait for those
    began = time.perf_counter()
    work()
    seconds = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    distributed.all_reduce(seconds, distributed.ReduceOp.MAX)
    return seconds.item()


def summed(value: float) -> float:
    """Adds up what all ranks give."""
    total = torch.tensor(value, dtype=torch.float64)
    distributed.all_reduce(total)
    return total.item()
