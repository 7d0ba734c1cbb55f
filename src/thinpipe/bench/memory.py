"""Measures the peak memory of a published row: two steps, as published without clearing gradients between them.

The published total is what the caching allocator reserved at its peak, summed over devices. What was allocated at the
peak, and so really needed, is measured beside it. Model memory is the bytes of the parameters, times how often each is
held; the rest of the total is activations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from thinpipe.bench.devices import as_published, gpus, limited, release, synchronize
from thinpipe.bench.naming import environment
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.table import Row, Table
from thinpipe.bench.workload import Workload, parameter_count

GIB = 2**30
STEPS = 2
ON_CPU = "peak memory is not measurable on CPU"


def measure_memory(
    table: Table,
    row: Row,
    devices: Sequence[torch.device],
    *,
    clear: bool = False,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> Record:
    """Trains a row for two steps and reads the allocator's peaks.

    Args:
        table: what all rows have in common.
        row: the row; its limit holds for each GPU.
        devices: a device for each stage.
        clear: whether gradients are cleared between the steps (default: no, as published).
        seed: of weights and data (default: 0).
        tick: called after every step, for a progress bar.
    """
    workload = Workload(table, row, list(devices))
    torch.manual_seed(seed)
    release(devices)
    notes = [] if gpus(devices) else [ON_CPU]
    results: dict[str, float | None] = {"reserved_gib": None, "allocated_gib": None}
    samples: dict[str, list[float]] = {}
    try:
        with as_published(), limited(devices, row.limit):
            samples["step"] = _train(workload, clear=clear, tick=tick)
        results |= peaks(devices)
    except torch.OutOfMemoryError:
        notes.append("out of memory")
    release(devices)
    parameters = parameter_count(table, row)
    model = parameters * 4 * table.copies / GIB
    total = results["reserved_gib"]
    activations = None if total is None else total - model
    results |= {"model_gib": model, "activations_gib": activations, "parameters": parameters}
    published = {
        "reserved_gib": row.published.total,
        "model_gib": row.published.model,
        "activations_gib": row.published.activations,
    }
    settings = {
        **workload.settings(),
        "steps": STEPS,
        "gradients_cleared": clear,
        "limit_gib": row.limit if gpus(devices) else None,
        "seed": seed,
        "environment": environment(),
    }
    return Record(table.bench, results, samples, settings, Machine.current(), row.name, published, notes)


def _train(workload: Workload, *, clear: bool, tick: Callable[[], None]) -> list[float]:
    """Trains for two steps; returns the seconds of each."""
    module = workload.module()
    images, target = workload.batch()
    optimizer = workload.optimizer(module.parameters())
    release(workload.devices)
    for gpu in gpus(workload.devices):
        torch.cuda.reset_peak_memory_stats(gpu)
    seconds = []
    for step in range(STEPS):
        began = time.perf_counter()
        if clear and step:
            optimizer.zero_grad()
        workload.loss(module(images), target).backward()
        optimizer.step()
        synchronize(workload.devices)
        seconds.append(time.perf_counter() - began)
        tick()
    return seconds


def peaks(devices: Sequence[torch.device]) -> dict[str, float | None]:
    """Reads the allocator's peaks since they were last reset, summed over GPUs; None where there is no GPU."""
    measured = gpus(devices)
    if not measured:
        return {"reserved_gib": None, "allocated_gib": None}
    return {
        "reserved_gib": sum(torch.cuda.max_memory_reserved(gpu) for gpu in measured) / GIB,
        "allocated_gib": sum(torch.cuda.max_memory_allocated(gpu) for gpu in measured) / GIB,
    }
