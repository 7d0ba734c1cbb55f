"""Measures the throughput of a published row: the same fake batch again and again, in epochs.

A step is forward, loss, backward, ``optimizer.step()`` and ``zero_grad()``. Every device is waited for before and after
an epoch. The first epoch is not counted, and throughput is the mean over the others. A full published epoch ends with
the samples that are left over, as a smaller batch; a shortened one consists of full batches only.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from thinpipe.bench.devices import as_published, release, synchronize
from thinpipe.bench.naming import environment
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.table import Row, Table
from thinpipe.bench.workload import Workload, parameter_count


@dataclass(frozen=True)
class Length:
    """How long a row is measured.

    Args:
        epochs: how many, the first of which is not counted; 10 were published.
        steps: at most so many an epoch; None for the published epoch with its remainder.
    """

    epochs: int
    steps: int | None

    @classmethod
    def of(cls, epochs: int, steps: int, *, published: bool) -> Length:
        """Reads the options of a command, where 0 steps are the whole epoch."""
        return PUBLISHED if published else cls(epochs, steps or None)

    def different(self, usual: Length) -> str:
        """Says in a record's name how long it was, if that is not as usual."""
        if self == usual:
            return ""
        if self == PUBLISHED:
            return "published-epochs"
        return f"{self.epochs}-whole-epochs" if self.steps is None else f"{self.epochs}x{self.steps}"

    def batches(self, row: Row, dataset: int) -> list[int]:
        """Lists the rows of each step of an epoch."""
        full, rest = divmod(dataset, row.batch)
        if self.steps is not None and self.steps <= full:
            return [row.batch] * self.steps
        return [row.batch] * full + ([rest] if rest else [])


PUBLISHED = Length(10, None)


def measure_speed(
    table: Table,
    row: Row,
    devices: Sequence[torch.device],
    *,
    length: Length,
    autotune: bool = False,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> Record:
    """Trains a row for some epochs and measures how many samples it takes in a second.

    Args:
        table: what all rows have in common.
        row: the row.
        devices: a device for each stage.
        length: how long.
        autotune: whether cuDNN tries its algorithms out (default: no, as published).
        seed: of weights and data (default: 0).
        tick: called after every epoch, for a progress bar.
    """
    workload = Workload(table, row, list(devices))
    torch.manual_seed(seed)
    release(devices)
    notes = []
    if row.recompute == "cheap":
        notes.append("not among the published rows: the results of convolutions are kept, and the rest is recomputed")
    if row.rival:
        notes.append("torchgpipe itself, with the same settings on the same machine")
    batches = length.batches(row, table.dataset)
    results: dict[str, float | None] = {"throughput": None, "parameters": parameter_count(table, row)}
    samples: dict[str, list[float]] = {}
    try:
        with as_published(autotune=autotune):
            seconds = _train(workload, batches, length.epochs, tick)
        samples = {"epoch": seconds[1:], "first epoch, not counted": seconds[:1]}
        results["throughput"] = statistics.mean(sum(batches) / each for each in seconds[1:])
    except torch.OutOfMemoryError:
        notes.append("out of memory")
    release(devices)
    published = {"throughput": row.published.throughput, "speedup": row.published.speedup}
    settings = {
        **workload.settings(),
        "epochs": length.epochs,
        "published_epochs": PUBLISHED.epochs,
        "steps": len(batches),
        "published_steps": -(-table.dataset // row.batch),
        "samples_an_epoch": sum(batches),
        "cudnn_benchmark": autotune,
        "seed": seed,
        "environment": environment(),
    }
    machine = Machine.current(*(["torchgpipe"] if row.rival else []))
    return Record(table.bench, results, samples, settings, machine, row.name, published, notes)


def _train(workload: Workload, batches: list[int], epochs: int, tick: Callable[[], None]) -> list[float]:
    """Trains; returns the seconds of each epoch."""
    module = workload.module()
    images, target = workload.batch()
    optimizer = workload.optimizer(module.parameters())
    seconds = []
    for _ in range(epochs):
        synchronize(workload.devices)
        began = time.perf_counter()
        for rows in batches:
            workload.loss(module(images[:rows]), target[:rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
        synchronize(workload.devices)
        seconds.append(time.perf_counter() - began)
        tick()
    return seconds
