"""The stages of a cell as processes of one core each, which stay from one step to the next.

::

    parent     go ........................................ done      asleep in a read meanwhile
    rank 0       F0.0 F0.1                B0.1 B0.0 optimizer
    rank 1            F1.0 F1.1 B1.1 B1.0 optimizer

A rank's optimizer does not wait for the ranks before it, which still go backward; the step lasts until all are done.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from thinpipe.bench.cores_rank import Assignment, Order
from thinpipe.bench.cores_stage import StageTimes
from thinpipe.bench.link_processes import LOOK, Rank, started, told
from thinpipe.bench.workload import Workload

_PATIENCE = 3600.0


class StageRanks:
    """Processes that each have a stage; ``stage_ranks`` starts them and ends them.

    Args:
        ranks: the processes.
        patience: seconds to wait for their answers.
    """

    def __init__(self, ranks: Sequence[Rank], *, patience: float) -> None:
        self.ranks = ranks
        self.losses: list[float] = []
        self._patience = patience

    def step(self) -> None:
        """Has all ranks take a step, and waits for the last of them; ``losses`` are what they say it cost.

        Raises:
            RankError: one of them failed, or fell silent.
        """
        self.losses = [answer["loss"] for answer in self._ordered(Order.STEP)]

    def stages(self) -> list[StageTimes]:
        """Has all ranks compute their stages at once, without messages, and returns the times of each.

        Raises:
            RankError: one of them failed, or fell silent.
        """
        return [StageTimes(**answer) for answer in self._ordered(Order.STAGE)]

    def _ordered(self, order: Order) -> list[dict[str, Any]]:
        for rank in self.ranks:
            assert rank.process.stdin is not None
            with suppress(BrokenPipeError):  # it is gone, which its answer will tell
                rank.process.stdin.write(f"{order}\n".encode())
        return self.hear()

    def hear(self) -> list[dict[str, Any]]:
        """Waits for a line of every rank, asleep: the cores are theirs."""
        heard: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + self._patience
        with selectors.DefaultSelector() as selector:
            for rank in self.ranks:
                selector.register(rank.voice, selectors.EVENT_READ, rank)
            while len(heard) < len(self.ranks):
                spoken = selector.select(deadline - time.monotonic())
                if not spoken:
                    silent = [str(rank.number) for rank in self.ranks if rank.number not in heard]
                    raise told(f"no answer from rank {', '.join(silent)} in {self._patience:.0f} s", self.ranks)
                for rank in (key.data for key, _ in spoken):
                    # Whole lines, each flushed at once, are all that it writes.
                    line = rank.voice.readline()
                    if not line:
                        self._mourn(rank)
                    heard[rank.number] = json.loads(line)
                    selector.unregister(rank.voice)
        return [heard[rank.number] for rank in self.ranks]

    def _mourn(self, rank: Rank) -> None:
        with suppress(subprocess.TimeoutExpired):  # its output ends a moment before it does
            rank.process.wait(LOOK)
        time.sleep(LOOK)  # the others may be about to say what they saw of it
        raise told(f"rank {rank.number} failed", self.ranks)


@contextmanager
def stage_ranks(
    workload: Workload,
    *,
    schedule: str,
    seed: int = 0,
    cores: Sequence[int] | None = None,
    reserve: int = 0,
    patience: float = _PATIENCE,
) -> Iterator[StageRanks]:
    """Starts a process for each stage, gives them when all are ready, and leaves none behind.

    Args:
        workload: the cell.
        schedule: of the pipeline.
        seed: of weights and data (default: 0).
        cores: the core each of them computes on; the threads that carry messages use those left over, if there are any
            (default: any).
        reserve: MiB that each asks for at once, instead of by and by in the steps that are timed; an allocator that
            gives it back to the system has nothing of it (default: 0).
        patience: seconds to wait for a step, and for all to be ready (default: an hour).

    Raises:
        RankError: one of them failed, or fell silent.
    """
    n = workload.row.n
    with tempfile.TemporaryDirectory(prefix="thinpipe-") as folder:
        store = str(Path(folder, "store"))
        assignments = [
            Assignment(
                rank=rank,
                table=workload.table,
                row=workload.row,
                schedule=schedule,
                seed=seed,
                core=cores[rank] if cores else None,
                spare=tuple(left_over(cores)) if cores else (),
                reserve=reserve,
                store=store,
                patience=patience,
            )
            for rank in range(n)
        ]
        module = [sys.executable, "-m", "thinpipe.bench.cores_rank"]
        with started([[*module, each.text()] for each in assignments], heard=range(n)) as processes:
            ranks = StageRanks(processes, patience=patience)
            ranks.hear()
            yield ranks


def own_cores(n: int) -> list[int] | None:
    """Finds a core for each of ``n`` processes; None where there are too few, or processes cannot be held to one."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return spread({core: _siblings(core) for core in os.sched_getaffinity(0)}, n)


def left_over(cores: Sequence[int]) -> list[int]:
    """Lists the cores that nobody computes on."""
    return sorted(os.sched_getaffinity(0) - set(cores))


def _siblings(core: int) -> str:
    with suppress(OSError):
        return Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text().strip()
    return str(core)


def spread(siblings: Mapping[int, str], n: int) -> list[int] | None:
    """Chooses ``n`` cores of which as few as can be are two threads of one, evenly spaced.

    Virtual machines often do not tell which of their cores share one; neighbours are the most likely to.

    Args:
        siblings: for each core, the name of what it shares with others.
        n: how many.
    """
    if len(siblings) < n:
        return None
    firsts = list({name: core for core, name in sorted(siblings.items(), reverse=True)}.values())[::-1]
    if len(firsts) >= n:
        return [firsts[(2 * k + 1) * len(firsts) // (2 * n)] for k in range(n)]
    return sorted([*firsts, *sorted(set(siblings) - set(firsts))[: n - len(firsts)]])
