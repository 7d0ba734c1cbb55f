"""One training step of a network cut in three, with a codec at both cuts, on a CPU and on a GPU.

Codecs round, so the last bits in which two devices differ become whole steps of a codec here and there. How much that
may be is measured, not guessed: the same step on the CPU, from images that differ by as little.

    python tests/runtime/step_on_devices.py        prints the table

In bfloat16 a deep network with its first weights is chaotic: gradients of two steps whose images differ in the last
bit have nothing in common. So there the codecs are compared by themselves, on the tensors that cross the cuts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from thinpipe import Pipe
from thinpipe.train.networks import NETWORKS
from thinpipe.train.weights import built

SPECS = (
    *(
        "none",
        "uniform:8",
        "sort:12+4",
        "sort:6+2",
        "sort:3+1",
        "block:4",
        "had:4",
        "had:2",
        "nf:4",
        "wave:4",
        "wave:0.6",
    ),
    *("topk:0.8", "topk:0.1", "topk:0.2|uniform:8", "downsample:2", "power:3"),
)
ROWS, CHUNKS, PIXELS = 64, 2, 32
NUDGES = {torch.float64: 1e-14, torch.float32: 1e-6}
"""Relative changes of an image, of the size in which arithmetic of a precision errs."""


@dataclass(frozen=True)
class Step:
    """What a step gives: the outputs, and all gradients as one vector."""

    outputs: Tensor
    gradients: Tensor


@dataclass(frozen=True)
class Differences:
    """How far steps are apart, as shares of the CPU's.

    Args:
        outputs: the GPU's from the CPU's.
        gradients: likewise.
        nudged_outputs: the CPU's from its own, when images are changed in their last bits.
        nudged_gradients: likewise.
    """

    outputs: float
    gradients: float
    nudged_outputs: float
    nudged_gradients: float


def step(spec: str, *, device: str, dtype: torch.dtype, compiled: bool = False, nudge: float = 0.0) -> Step:
    """Computes one step; weights and images are the same everywhere."""
    network = NETWORKS["mobilenet_v2_32px"]
    # Dropout draws what a device draws, and would hide everything else.
    model = built(lambda: network.make(10, 0.0), 0).to(dtype)
    names, cut = [name for name, _ in model.named_children()], network.cuts["before-relu"]
    first, second = names.index(cut.middle), names.index(cut.last)
    balance, codec = [first, second - first, len(names) - second], None if spec == "none" else spec
    pipe = Pipe(model, balance, devices=[device] * 3, chunks=CHUNKS, checkpoint="never", codec=codec, grad_codec=codec)
    pipe.train()
    if compiled:
        pipe.compile()
    generator = torch.Generator().manual_seed(0)
    images = functional.interpolate(torch.randn(ROWS, 3, 8, 8, generator=generator), size=PIXELS, mode="bicubic").to(
        dtype
    )
    images = images * (1 + nudge * torch.randn(images.shape, generator=generator, dtype=dtype))
    targets = torch.arange(ROWS) % 10
    outputs = pipe(images.to(device).contiguous(memory_format=torch.channels_last))
    functional.cross_entropy(outputs, targets.to(device)).backward()
    found = [p.grad.flatten().double().cpu() for p in pipe.parameters() if p.grad is not None]
    return Step(outputs.detach().double().cpu(), torch.cat(found))


def differences(spec: str, *, dtype: torch.dtype, compiled: bool) -> Differences:
    """Compares the step on a GPU with that on the CPU, and that with itself from images that were nudged."""
    here, nudged = _on_cpu(spec, dtype, 0.0), _on_cpu(spec, dtype, NUDGES[dtype])
    there = step(spec, device="cuda", dtype=dtype, compiled=compiled)
    return Differences(
        apart(there.outputs, here.outputs),
        apart(there.gradients, here.gradients),
        apart(nudged.outputs, here.outputs),
        apart(nudged.gradients, here.gradients),
    )


@cache
def _on_cpu(spec: str, dtype: torch.dtype, nudge: float) -> Step:
    return step(spec, device="cpu", dtype=dtype, nudge=nudge)


@cache
def crossing(dtype: torch.dtype) -> tuple[tuple[str, Tensor, Tensor], ...]:
    """Makes what crosses both cuts in a step without a codec: for each the activation and its gradient."""
    network = NETWORKS["mobilenet_v2_32px"]
    model = built(lambda: network.make(10, 0.0), 0)
    cut, found = network.cuts["before-relu"], dict[str, Tensor]()

    def keep(name: str, x: Tensor) -> None:
        x.retain_grad()
        found[name] = x

    for name in (cut.middle, cut.last):
        layer = model.get_submodule(name)
        layer.register_forward_pre_hook(lambda _, inputs, name=name: keep(name, inputs[0]))
    generator = torch.Generator().manual_seed(0)
    images = functional.interpolate(torch.randn(ROWS, 3, 8, 8, generator=generator), size=PIXELS, mode="bicubic")
    outputs = model(images.contiguous(memory_format=torch.channels_last))
    functional.cross_entropy(outputs, torch.arange(ROWS) % 10).backward()
    return tuple((name, x.detach().to(dtype), x.grad.to(dtype)) for name, x in found.items())


def apart(one: Tensor, other: Tensor) -> float:
    """Tells how far two tensors are apart, as a share of the second."""
    return float((one.double() - other.double()).norm() / other.double().norm())


def _table() -> Iterator[str]:
    yield f"{'codec':20} {'precision':14} {'stages':9} {'outputs':>9} {'nudged':>9} {'gradients':>9} {'nudged':>9}"
    for dtype, compiled, spec in itertools.product(NUDGES, (False, True), SPECS):
        found = differences(spec, dtype=dtype, compiled=compiled)
        figures = (found.outputs, found.nudged_outputs, found.gradients, found.nudged_gradients)
        stages = "compiled" if compiled else "eager"
        yield f"{spec:20} {dtype!s:14} {stages:9} {' '.join(f'{value:9.2e}' for value in figures)}"


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for line in _table():
        print(line, flush=True)  # noqa: T201
