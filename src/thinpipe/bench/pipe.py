"""``thinpipe bench pipe``: what a Pipe costs and gains against the bare module, and against torchgpipe.

The network is a row of equal convolutions, half of them in each stage, for which cutting the batch into eight costs and
gains little by itself. How much it does on this machine, by smaller tensors in the caches, is ``micro_batching``; what
the second stage adds to it is ``pipelining_2``, which can be ``2m / (m + 1)`` at best, 1.78 for eight micro-batches.
The overhead is measured apart, in many more rounds of a step of an eighth of the size, where it would show more.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from thinpipe.bench.measure import Samples, Track, Variant, in_turns
from thinpipe.bench.record import Machine, Record
from thinpipe.runtime.pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Iterator

Build: TypeAlias = Callable[[nn.Sequential, list[torch.device]], dict[str, nn.Module]]

CHUNKS = 8
IDEAL = 2 * CHUNKS / (CHUNKS + 1)


@dataclass(frozen=True)
class Workload:
    """The network and its batch.

    Args:
        layers: the number of convolutions, half of them in each stage.
        channels: of every convolution.
        pixels: the height and width of the image.
        rows: the batch.
    """

    layers: int = 8
    channels: int = 64
    pixels: int = 32
    rows: int = 16

    def model(self) -> nn.Sequential:
        """Builds the network: convolutions and rectifiers, and a mean over pixels."""
        c = self.channels
        blocks = [nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.ReLU()) for _ in range(self.layers)]
        blocks[-1].append(nn.AdaptiveAvgPool2d(1))
        return nn.Sequential(*blocks)

    def batch(self) -> Tensor:
        """Draws a batch that wants a gradient, or the first stage would have less to do than the second."""
        return torch.rand(self.rows, self.channels, self.pixels, self.pixels, requires_grad=True)


def bench_pipe(
    workload: Workload, *, devices: Sequence[torch.device], rounds: int, seed: int = 0, track: Track = iter
) -> Record:
    """Times one training step of every variant, in turns.

    Args:
        workload: the network and its batch.
        devices: the devices of the two stages; a CPU device stands for one core.
        rounds: how often each variant is timed.
        seed: of weights and data (default: 0).
        track: wraps the rounds in a progress bar (default: none).
    """
    torch.manual_seed(seed)
    small = replace(workload, rows=max(1, workload.rows // CHUNKS))
    places = list(devices)
    with _one_thread_a_stage():
        pipelines = in_turns(_steps(workload, places, _pipelines), rounds=rounds, devices=places, track=track)
        overheads = in_turns(_steps(small, places, _overheads), rounds=5 * rounds, devices=places, track=track)
    settings = {
        "workload": vars(workload),
        "devices": [str(device) for device in devices],
        "chunks": CHUNKS,
        "rounds": rounds,
        "seed": seed,
        "intra_op_threads": 1,
    }
    samples = pipelines.seconds | {f"{name} small": seconds for name, seconds in overheads.seconds.items()}
    return Record("pipe", _results(pipelines, overheads), samples, settings, Machine.current("torchgpipe"))


@contextmanager
def _one_thread_a_stage() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _steps(workload: Workload, devices: list[torch.device], build: Build) -> dict[str, Variant]:
    """Makes a training step of each module that is to be compared, from the same weights."""
    model, batch = workload.model(), workload.batch().to(devices[0]).detach().requires_grad_()

    def step(module: nn.Module) -> Variant:
        def run() -> None:
            module(batch).mean().backward()
            batch.grad = None
            for parameter in module.parameters():
                parameter.grad = None

        return run

    bare = copy.deepcopy(model).to(devices[0])
    return {"bare": step(bare)} | {name: step(module) for name, module in build(model, devices).items()}


def _pipe(kind: Any, model: nn.Sequential, devices: list[torch.device], chunks: int) -> nn.Module:
    balance = [len(model) // len(devices)] * len(devices)
    module = kind(copy.deepcopy(model), balance, devices=devices, chunks=chunks, checkpoint="never")
    assert isinstance(module, nn.Module)
    return module


def _pipelines(model: nn.Sequential, devices: list[torch.device]) -> dict[str, nn.Module]:
    modules = {
        "pipe 1 stage": _pipe(Pipe, model, devices[:1], CHUNKS),
        "pipe 2 stages": _pipe(Pipe, model, devices, CHUNKS),
    }
    return modules | {f"{name} 2 stages": _pipe(kind, model, devices, CHUNKS) for name, kind in _rivals().items()}


def _overheads(model: nn.Sequential, devices: list[torch.device]) -> dict[str, nn.Module]:
    kinds = {"pipe": Pipe, **_rivals()}
    return {f"{name} 1x1": _pipe(kind, model, devices[:1], 1) for name, kind in kinds.items()}


def _rivals() -> dict[str, Any]:
    if importlib.util.find_spec("torchgpipe") is None:
        return {}
    from torchgpipe import GPipe

    return {"torchgpipe": GPipe}


def _results(pipelines: Samples, overheads: Samples) -> dict[str, float | None]:
    def ratio(samples: Samples, numerator: str, denominator: str) -> float | None:
        if numerator not in samples.seconds or denominator not in samples.seconds:
            return None
        return round(samples.ratio(numerator, denominator), 4)

    return {
        "overhead_1x1": ratio(overheads, "pipe 1x1", "bare"),
        "speedup_2": ratio(pipelines, "bare", "pipe 2 stages"),
        "ideal_speedup_2": round(IDEAL, 4),
        "micro_batching": ratio(pipelines, "bare", "pipe 1 stage"),
        "pipelining_2": ratio(pipelines, "pipe 1 stage", "pipe 2 stages"),
        "torchgpipe_overhead_1x1": ratio(overheads, "torchgpipe 1x1", "bare"),
        "torchgpipe_speedup_2": ratio(pipelines, "bare", "torchgpipe 2 stages"),
        "over_torchgpipe": ratio(pipelines, "torchgpipe 2 stages", "pipe 2 stages"),
    }
