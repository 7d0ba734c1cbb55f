"""The AmoebaNet-D speed table with CPU cores for devices: how a pipeline scales, measured without GPUs.

Each cell (n, m) times one training step of four variants in turns, each stage having one core:

====================  ==================================================================================
``bare``              the network on one core, the whole batch at once: what the speed-up is over
``one core``          the network on one core, the same micro-batches as the pipeline's one after the other
``thinpipe``          ``Pipe`` of n stages
``torchgpipe``        ``GPipe`` of the same n stages, where it is installed
====================  ==================================================================================

The network is cut so that the largest stage is as small as can be, by the measured time of its layers. The ideal of
that partition (see ``ideal``) is over ``one core``; what the smaller micro-batches gain or lose by themselves is
``micro_batching``, so the speed-up over ``bare`` is at best the product of the two.
"""

from __future__ import annotations

import copy
import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from thinpipe.balance import balance_cost, profile_times
from thinpipe.bench.devices import as_published
from thinpipe.bench.ideal import equal_stages, partition
from thinpipe.bench.measure import Samples, Track, Variant, in_turns
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.table import Row, Table
from thinpipe.bench.workload import Workload
from thinpipe.runtime.pipe import Pipe

BENCH = "amoebanet-speed-cores"


def measure_cell(
    table: Table, row: Row, *, rounds: int, profile_seconds: float = 2.0, seed: int = 0, track: Track = iter
) -> Record:
    """Measures one cell of the table on the CPU.

    Args:
        table: what all rows have in common.
        row: the cell; its balance is replaced by one for the times measured here.
        rounds: how often each variant is timed, after one that is not counted.
        profile_seconds: about how long to measure the layers (default: 2).
        seed: of weights and data (default: 0).
        track: wraps the rounds in a progress bar (default: none).
    """
    torch.manual_seed(seed)
    n, m = row.n, row.m
    workload = Workload(table, row, [torch.device("cpu")] * n)
    network = workload.network()
    with as_published():
        sample = workload.batch()[0][: -(-row.batch // m)]
        both = profile_times(network, sample, timeout=profile_seconds)
        forward = _forward_times(network, sample, profile_seconds / 2)
        recomputes = row.checkpoint == "always" or (row.checkpoint == "except_last" and m > 1)
        cost = [t + f for t, f in zip(both, forward, strict=True)] if recomputes else both
        balance = balance_cost(cost, n)
        workload = replace(workload, row=replace(row, balance=tuple(balance)))
        samples = in_turns(_variants(workload, network), rounds=rounds, warm_up=1, track=track)
    stage_forward = _stage_sums(forward, balance)
    stage_backward = [max(0.0, t - f) for t, f in zip(_stage_sums(both, balance), stage_forward, strict=True)]
    ideal = partition(stage_forward, stage_backward, m, row.checkpoint)
    settings = {
        **workload.settings(),
        "rounds": rounds,
        "intra_op_threads": 1,
        "seed": seed,
        "stage_forward_seconds": stage_forward,
        "stage_backward_seconds": stage_backward,
    }
    results = _results(samples, n, m, ideal) | {
        "throughput": row.batch / samples.median("thinpipe"),
        "total_over_largest": sum(both) / max(_stage_sums(both, balance)),
    }
    published = {"speedup_over_n2m1": row.published.speedup, "throughput": row.published.throughput}
    machine = Machine.current("torchgpipe")
    return Record(BENCH, results, samples.seconds, settings, machine, row.name, published)


def _results(samples: Samples, n: int, m: int, ideal: float) -> dict[str, float | None]:
    one = "one core" if m > 1 else "bare"
    rival = "torchgpipe" in samples.seconds
    return {
        "speedup": samples.ratio("bare", "thinpipe"),
        "torchgpipe_speedup": samples.ratio("bare", "torchgpipe") if rival else None,
        "over_torchgpipe": samples.ratio("torchgpipe", "thinpipe") if rival else None,
        "ideal_equal_stages": equal_stages(n, m),
        "ideal_partition": ideal,
        "micro_batching": samples.ratio("bare", one),
        "of_ideal": samples.ratio(one, "thinpipe") / ideal,
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


def _variants(workload: Workload, network: nn.Sequential) -> dict[str, Variant]:
    """Makes a training step of each variant, all from the same weights."""
    row, cpus = workload.row, workload.devices
    images, target = workload.batch()
    sizes = [len(piece) for piece in images.tensor_split(row.m)]

    def copied() -> nn.Sequential:
        return copy.deepcopy(network)

    def whole(module: nn.Module) -> Callable[[], None]:
        return lambda: workload.loss(module(images), target).backward()

    def in_pieces(module: nn.Module) -> Callable[[], None]:
        def run() -> None:
            for x, y in zip(images.split(sizes), target.split(sizes), strict=True):
                (workload.loss(module(x), y) * (len(x) / row.batch)).backward()

        return run

    def step(module: nn.Module, train: Callable[[nn.Module], Callable[[], None]]) -> Variant:
        optimizer, run = workload.optimizer(module.parameters()), train(module)

        def variant() -> None:
            run()
            optimizer.step()
            optimizer.zero_grad()

        return variant

    pipe = Pipe(copied(), row.balance, devices=cpus, chunks=row.chunks, checkpoint=row.checkpoint)
    variants = {"bare": step(copied(), whole), "thinpipe": step(pipe, whole)}
    if row.m > 1:  # or it would be the bare network
        variants["one core"] = step(copied(), in_pieces)
    if importlib.util.find_spec("torchgpipe") is not None:
        from torchgpipe import GPipe

        rival = GPipe(copied(), list(row.balance), devices=cpus, chunks=row.chunks, checkpoint=row.checkpoint)
        variants["torchgpipe"] = step(rival, whole)
    return variants
