"""Measures how busy the devices of a pipeline are: throughput, utilization and memory of four stages of a U-Net.

The published table takes torchgpipe apart: without the order of micro-batches, with it, with streams for copies, and
with skips that bypass the stages between. A ``Pipe`` always has all of these, so ours is one row, beside the last.

Utilization is the share of time in which a device computes. On a GPU that is the union of the kernels' times, which a
profiler notes in steps of their own; on CPU cores the time that a stage's thread had its core, by its own clock.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import nn
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from thinpipe.bench.devices import as_published, gpus, release, synchronize
from thinpipe.bench.memory import GIB, ON_CPU
from thinpipe.bench.naming import environment
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.speed import Length
from thinpipe.bench.table import Row, Table
from thinpipe.bench.workload import Workload

NOT_RUN = (
    "baseline, dep-x-x and dep-str-x switch off the order of micro-batches, the streams of copies and the skips past "
    "stages, which a Pipe always has; dep-str-ptl is what thinpipe stands beside"
)


def measure_timeline(
    table: Table,
    row: Row,
    devices: Sequence[torch.device],
    *,
    length: Length,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> Record:
    """Trains a row and measures how busy its devices are.

    Args:
        table: what all rows have in common.
        row: the row.
        devices: a device for each stage.
        length: how long.
        seed: of weights and data (default: 0).
        tick: called after every epoch, for a progress bar.
    """
    workload = Workload(table, row, list(devices))
    torch.manual_seed(seed)
    release(devices)
    batches = length.batches(row, table.dataset)
    with as_published():
        module = workload.module()
        step = _step(workload, module)
        for gpu in gpus(devices):
            torch.cuda.reset_peak_memory_stats(gpu)
        seconds, shares = [], []
        for _ in range(length.epochs):
            took, busy = _epoch(lambda: [step(rows) for rows in batches], devices)
            seconds.append(took)
            shares.append(busy)
            tick()
        reserved = sum(torch.cuda.max_memory_reserved(gpu) for gpu in gpus(devices)) / GIB
        share = _kernels_share(partial(step, row.batch), devices) if gpus(devices) else statistics.mean(shares[1:])
    notes = [] if gpus(devices) else [ON_CPU]
    results = {
        "throughput": statistics.mean(sum(batches) / each for each in seconds[1:]),
        "utilization": share,
        "reserved_gib": reserved if gpus(devices) else None,
    }
    settings = {
        **workload.settings(),
        "epochs": length.epochs,
        "steps": len(batches),
        "utilization": "union of kernel times in two profiled steps" if gpus(devices) else "CPU time of stage threads",
        "seed": seed,
        "environment": environment(),
    }
    samples = {"epoch": seconds[1:], "first epoch, not counted": seconds[:1]}
    return Record(table.bench, results, samples, settings, Machine.current(), row.name, notes=notes)


def _step(workload: Workload, module: nn.Module) -> Callable[[int], None]:
    """Makes a step of training on the first rows of the batch."""
    images, target = workload.batch()
    optimizer = workload.optimizer(module.parameters())

    def step(rows: int) -> None:
        workload.loss(module(images[:rows]), target[:rows]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _epoch(run: Callable[[], object], devices: Sequence[torch.device]) -> tuple[float, float]:
    """Runs an epoch; returns its seconds, and the share of them that the stages' threads had their cores."""
    synchronize(devices)
    before = _thread_seconds()
    began = time.perf_counter()
    run()
    synchronize(devices)
    took = time.perf_counter() - began
    busy = [after - before.get(thread, 0.0) for thread, after in _thread_seconds().items()]
    return took, sum(busy) / (len(devices) * took)


def _thread_seconds() -> dict[int, float]:
    """Reads the clocks of the stages' threads: how long each has had a core."""
    stages = [thread for thread in threading.enumerate() if thread.name.startswith("thinpipe-stage-")]
    return {
        thread.ident: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in stages
        if thread.ident is not None
    }


def _kernels_share(step: Callable[[], None], devices: Sequence[torch.device]) -> float:
    """Profiles two steps; returns the mean share of the time from the first kernel to the last in which a GPU ran any.

    The clock is the kernels' own: starting the profiler takes seconds that are not the pipeline's.
    """
    synchronize(devices)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        step()
        synchronize(devices)
    spans: dict[int, list[tuple[float, float]]] = {gpu.index: [] for gpu in gpus(devices)}
    for event in profiler.events() or []:
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            spans[event.device_index].append((event.time_range.start, event.time_range.end))
    ends = [end for each in spans.values() for end in each]
    took = max(end for _, end in ends) - min(start for start, _ in ends)
    return statistics.mean(covered(each) / took for each in spans.values())


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
