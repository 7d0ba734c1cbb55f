"""The AmoebaNet-D speed table with CPU cores for devices: how a pipeline scales, measured without GPUs.

Each cell (n, m) times one training step of each variant in turns, each stage having one core:

====================  ==================================================================================
``bare``              the network on one core, the whole batch at once: what the speed-up is over
``one core``          the network on one core, the same micro-batches as the pipeline's one after the other
``thinpipe``          n processes, a rank of ``Pipeline`` each; or ``Pipe``, whose n stages are threads
``torchgpipe``        ``GPipe`` of the same n stages, threads, where it is installed
``ideal at once``     not a step: the least time of GPipe's schedule for the n processes' stages (see ``cores_stage``)
====================  ==================================================================================

A step ends when the last parameter is updated. Threads of one process take turns in the interpreter, which a network of
many small layers needs nearly all the time; processes do not, and on a machine that has a core for each of them, each
computes on its own. Where more cores are left, they are for the threads that carry messages, as a GPU has engines for
its copies; where none is, those share the core of their stage.

The network is cut so that the largest stage is as small as can be, by the measured time of its layers. The ideal of
that partition (see ``ideal``) is over ``one core``; what the smaller micro-batches gain or lose by themselves is
``micro_batching``, so GPipe's speed-up over ``bare`` is at best the product of the two. Cores that compute at the same
time slow each other down, which no profile on one of them knows: ``ideal at once`` is of the stages as they are in the
same round, all at once.

Processes with no more micro-batches than stages have the zero-bubble schedule: a stage computes the gradients of its
weights while the stages before it go backward, even if there is but one micro-batch, and may do better than either
ideal, which is that of GPipe's schedule.
"""

from __future__ import annotations

import copy
import os
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe.balance import balance_cost, profile_times
from thinpipe.bench.cores_ranks import left_over, own_cores, stage_ranks
from thinpipe.bench.cores_stage import AtOnce
from thinpipe.bench.cores_work import Trainings, drawn
from thinpipe.bench.devices import as_published
from thinpipe.bench.ideal import equal_stages, partition
from thinpipe.bench.measure import Samples, Track, Variant, in_turns
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.table import Row, Table
from thinpipe.bench.workload import Workload
from thinpipe.runtime.heap import ALLOCATOR

BENCH = "amoebanet-speed-cores"

AUTO = "auto"
IDEAL = "ideal at once"


class Workers(StrEnum):
    """What the stages of ``thinpipe`` are."""

    PROCESSES = "processes"
    THREADS = "threads"


def measure_cell(
    table: Table,
    row: Row,
    *,
    rounds: int,
    workers: Workers = Workers.PROCESSES,
    schedule: str = AUTO,
    reserve: int = 0,
    profile_seconds: float = 2.0,
    seed: int = 0,
    track: Track = iter,
) -> Record:
    """Measures one cell of the table on the CPU.

    Args:
        table: what all rows have in common.
        row: the cell; its balance is replaced by one for the times measured here.
        rounds: how often each variant is timed, after one that is not counted.
        workers: what our stages are (default: processes).
        schedule: of our processes; threads and torchgpipe have that of GPipe (default: see ``chosen_schedule``).
        reserve: MiB that each process asks for before it is timed; see ``stage_ranks`` (default: 0).
        profile_seconds: about how long to measure the layers (default: 2).
        seed: of weights and data (default: 0).
        track: wraps the rounds in a progress bar (default: none).

    Raises:
        RankError: one of the processes failed; all are gone.
    """
    row, notes = _as_run(row, workers)
    n, m = row.n, row.m
    schedule = chosen_schedule(n, m) if schedule == AUTO else schedule
    workload = Workload(table, row, [torch.device("cpu")] * n)
    network, images, target = drawn(workload, seed)
    with as_published():
        profile = _profiled(row, network, images, profile_seconds)
        workload = replace(workload, row=replace(row, balance=tuple(profile.balance)))
        cores = own_cores(n) if workers is Workers.PROCESSES else None
        trainings = Trainings(workload, network, images, target)
        with ExitStack() as running:
            variants, at_once = _variants(trainings), None
            if workers is Workers.PROCESSES:
                ranks = running.enter_context(
                    stage_ranks(workload, schedule=schedule, seed=seed, cores=cores, reserve=reserve)
                )
                at_once = AtOnce(row, ranks.stages)
                variants |= {"thinpipe": ranks.step, IDEAL: at_once.variant}
            else:
                variants["thinpipe"] = trainings.threads()
            samples = in_turns(variants, rounds=rounds, warm_up=1, track=track)
    at_once_seconds: dict[str, Any] = {}
    if at_once is not None:
        # Of its turn only the stages' own times count, not how long it was.
        samples = Samples(samples.seconds | {IDEAL: at_once.ideals(rounds)})
        at_once_seconds = at_once.settings(rounds)
    settings = {
        **workload.settings(),
        "workers": str(workers),
        "pinned_to": cores,
        "cores_of_messages": left_over(cores) if cores else None,
        "reserve_mib": reserve,
        "schedule": schedule if workers is Workers.PROCESSES else "gpipe",
        "rounds": rounds,
        "intra_op_threads": 1,
        "seed": seed,
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(ALLOCATOR)},
        "stage_forward_seconds": profile.forward,
        "stage_backward_seconds": profile.backward,
        **at_once_seconds,
    }
    ideal = partition(profile.forward, profile.backward, m, row.checkpoint)
    results = _results(samples, n, m, ideal) | {
        "throughput": row.batch / samples.median("thinpipe"),
        "total_over_largest": sum(profile.both) / max(profile.both),
    }
    published = {"speedup_over_n2m1": row.published.speedup, "throughput": row.published.throughput}
    machine = Machine.current("torchgpipe")
    return Record(BENCH, results, samples.seconds, settings, machine, row.name, published, notes)


@dataclass(frozen=True)
class _Profile:
    """How the network is cut, and the seconds of each stage for a micro-batch: forward, backward, and both at once."""

    balance: list[int]
    forward: list[float]
    backward: list[float]
    both: list[float]


def _profiled(row: Row, network: nn.Sequential, images: Tensor, seconds: float) -> _Profile:
    """Measures the layers on a micro-batch, and cuts the network by it."""
    sample = images[: -(-row.batch // row.m)]
    both = profile_times(network, sample, timeout=seconds)
    forward = _forward_times(network, sample, seconds / 2)
    recomputes = row.checkpoint == "always" or (row.checkpoint == "except_last" and row.m > 1)
    cost = [t + f for t, f in zip(both, forward, strict=True)] if recomputes else both
    balance = balance_cost(cost, row.n)
    stage_forward, stage_both = _stage_sums(forward, balance), _stage_sums(both, balance)
    backward = [max(0.0, t - f) for t, f in zip(stage_both, stage_forward, strict=True)]
    return _Profile(balance, stage_forward, backward, stage_both)


def chosen_schedule(n: int, m: int) -> str:
    """Chooses ``zb`` where the bubble is large, else ``1f1b``.

    A backward in two parts takes longer than one, by some microseconds an operation, which small micro-batches feel.
    """
    return "zb" if m <= n else "1f1b"


def _as_run(row: Row, workers: Workers) -> tuple[Row, list[str]]:
    """Has all variants recompute the same: ``Pipeline`` recomputes all micro-batches of a stage, or none."""
    if workers is Workers.THREADS or row.checkpoint != "except_last":
        return row, []
    if row.m == 1:  # the only one is the last
        return replace(row, checkpoint="never"), []
    note = "every variant recomputed all micro-batches (always), not all but the last as published"
    return replace(row, checkpoint="always"), [note]


def _variants(trainings: Trainings) -> dict[str, Variant]:
    """Makes a training step of each variant that is not ours, all from the same weights."""
    variants = {"bare": trainings.bare()}
    if trainings.workload.row.m > 1:  # or it would be the bare network
        variants["one core"] = trainings.one_core()
    if rival := trainings.torchgpipe():
        variants["torchgpipe"] = rival
    return variants


def _results(samples: Samples, n: int, m: int, ideal: float) -> dict[str, float | None]:
    one = "one core" if m > 1 else "bare"
    rival, at_once = "torchgpipe" in samples.seconds, IDEAL in samples.seconds
    return {
        "speedup": samples.ratio("bare", "thinpipe"),
        "torchgpipe_speedup": samples.ratio("bare", "torchgpipe") if rival else None,
        "over_torchgpipe": samples.ratio("torchgpipe", "thinpipe") if rival else None,
        "ideal_equal_stages": equal_stages(n, m),
        "ideal_partition": ideal,
        "micro_batching": samples.ratio("bare", one),
        "of_ideal": samples.ratio(one, "thinpipe") / ideal,
        "ideal_at_once": samples.ratio("bare", IDEAL) if at_once else None,
        "of_ideal_at_once": samples.ratio(IDEAL, "thinpipe") if at_once else None,
    }


def _stage_sums(times: list[float], balance: list[int]) -> list[float]:
    ends = list(accumulate(balance))
    return [sum(times[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


def _forward_times(network: nn.Sequential, sample: Tensor, seconds: float) -> list[float]:
    """Measures each layer's forward alone, as a recomputed micro-batch first goes through it: the median of passes."""
    layers = copy.deepcopy(network)
    passes: list[list[float]] = []
    began = time.perf_counter()
    while len(passes) < 2 or time.perf_counter() - began < seconds:
        value, times = sample, []
        for layer in layers:
            start = time.perf_counter()
            with torch.no_grad():
                value = layer(value)
            times.append(time.perf_counter() - start)
        passes.append(times)
    return [statistics.median(each) for each in zip(*passes[1:], strict=True)]
