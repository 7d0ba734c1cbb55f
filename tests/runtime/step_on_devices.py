"""One training step of a network cut in three, with a codec at both cuts, on a CPU and on a GPU.

Codecs round, so the last bits in which two devices differ become whole steps of a codec here and there. How much that
may be is measured, not guessed: the same step on the CPU, from images that differ by as little.

    PYTHONPATH=src python tests/runtime/step_on_devices.py         prints the tables
    PYTHONPATH=src python tests/runtime/step_on_devices.py cpu     the same of the CPU against itself

In bfloat16 a deep network with its first weights is chaotic: gradients of two steps whose images differ in the last
bit have nothing in common. So the network is shallow there. What crosses the cuts of the deep one is compared as well,
codec by codec: the same tensors, packed and unpacked on both devices.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinpipe import Pipe, codec
from thinpipe.train.networks import NETWORKS
from thinpipe.train.weights import built

SPECS = (
    *("none", "fp16", "bf16", "uniform:8", "uniform:8,zero", "sort:12+4", "sort:6+2", "sort:3+1", "kmeans:4"),
    *("block:4", "had:4", "had:2", "nf:4", "wave:4", "wave:0.6"),
    *("topk:0.8", "topk:0.1", "topk:0.2|uniform:8", "downsample:2", "power:3", "power:3/3", "svd:2", "block:4|zstd"),
)
"""At least one of every codec of the catalogue."""

ROWS, CHUNKS, PIXELS = 64, 2, 32
NUDGES = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 1e-3}
"""Relative changes of an image, of the size in which arithmetic of a precision errs."""


@dataclass(frozen=True)
class Step:
    """What a step gives: the outputs, and the gradients of each stage as a vector."""

    outputs: Tensor
    gradients: tuple[Tensor, ...]


@dataclass(frozen=True)
class Differences:
    """How far steps are apart, as shares of the CPU's; of gradients, in the stage where they are furthest apart.

    Args:
        outputs: the other device's from the CPU's.
        gradients: likewise.
        nudged_outputs: the CPU's from its own, when images are changed in their last bits.
        nudged_gradients: likewise.
    """

    outputs: float
    gradients: float
    nudged_outputs: float
    nudged_gradients: float


@dataclass(frozen=True)
class Crossed:
    """What crossed a cut on a device: what arrived of an activation and of its gradient."""

    activation: Tensor
    gradient: Tensor


def step(spec: str, *, device: str, dtype: torch.dtype, compiled: bool = False, nudge: float = 0.0) -> Step:
    """Computes one step; weights and images are the same everywhere. In bfloat16 it is autocast's, as in training."""
    half = dtype == torch.bfloat16
    model, balance = _shallow() if half else _deep()
    model = model.to(torch.float32 if half else dtype, memory_format=torch.channels_last)
    counts = [len(list(stage.parameters())) for stage in _cut(model, balance)]
    packs = None if spec == "none" else spec
    pipe = Pipe(model, balance, devices=[device] * 3, chunks=CHUNKS, checkpoint="never", codec=packs, grad_codec=packs)
    pipe.train()
    if compiled:
        pipe.compile()
    images = _images(nudge).to(torch.float32 if half else dtype)
    with torch.autocast(device, dtype=torch.bfloat16, enabled=half):
        outputs = pipe(images.to(device).contiguous(memory_format=torch.channels_last))
    functional.cross_entropy(outputs.to(images.dtype), _targets(device)).backward()
    found = [p.grad.flatten().double().cpu() for p in pipe.parameters() if p.grad is not None]
    ends = itertools.pairwise(itertools.accumulate(counts, initial=0))
    return Step(outputs.detach().double().cpu(), tuple(torch.cat(found[begin:end]) for begin, end in ends))


def _deep() -> tuple[nn.Sequential, list[int]]:
    """Makes the network of the recipe that trains from scratch, and the layers of its stages."""
    network = NETWORKS["mobilenet_v2_32px"]
    # Dropout draws what a device draws, and would hide everything else.
    model = built(lambda: network.make(10, 0.0), 0)
    names, cut = [name for name, _ in model.named_children()], network.cuts["before-relu"]
    first, second = names.index(cut.middle), names.index(cut.last)
    return model, [first, second - first, len(names) - second]


def _shallow() -> tuple[nn.Sequential, list[int]]:
    """Makes a network with the same tensors at its cuts, and one layer between them."""

    def made() -> nn.Sequential:
        return nn.Sequential(
            *(nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)),
            *(nn.ReLU6(inplace=True), nn.Conv2d(32, 1280, 8, stride=8, groups=32, bias=False), nn.BatchNorm2d(1280)),
            *(nn.ReLU6(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 10)),
        )

    return built(made, 0), [2, 4, 3]


def _cut(model: nn.Sequential, balance: list[int]) -> Iterator[nn.Sequential]:
    ends = list(itertools.accumulate(balance, initial=0))
    return (model[begin:end] for begin, end in itertools.pairwise(ends))


def _images(nudge: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    small = torch.randn(ROWS, 3, 8, 8, generator=generator, dtype=torch.float64)
    images = functional.interpolate(small, size=PIXELS, mode="bicubic")
    return images * (1 + nudge * torch.randn(images.shape, generator=generator, dtype=torch.float64))


def _targets(device: str) -> Tensor:
    return torch.arange(ROWS, device=device) % 10


def differences(spec: str, *, dtype: torch.dtype, compiled: bool, device: str = "cuda") -> Differences:
    """Compares the step on a device with that on the CPU, and that with itself from images that were nudged."""
    here, nudged = _on_cpu(spec, dtype, 0.0), _on_cpu(spec, dtype, NUDGES[dtype])
    there = step(spec, device=device, dtype=dtype, compiled=compiled)
    return Differences(
        apart(there.outputs, here.outputs),
        max(map(apart, there.gradients, here.gradients)),
        apart(nudged.outputs, here.outputs),
        max(map(apart, nudged.gradients, here.gradients)),
    )


@cache
def _on_cpu(spec: str, dtype: torch.dtype, nudge: float) -> Step:
    return step(spec, device="cpu", dtype=dtype, nudge=nudge)


@cache
def crossing(dtype: torch.dtype) -> tuple[tuple[str, Tensor, Tensor], ...]:
    """Makes what crosses both cuts in a step without a codec: for each the activation and its gradient.

    Channels lie last in all of them, as they do in training on a GPU.
    """
    model, (first, second, _) = _deep()
    found = dict[str, Tensor]()

    def keep(name: str, x: Tensor) -> None:
        x.retain_grad()
        found[name] = x

    for name, layer in (("cut 1", model[first]), ("cut 2", model[first + second])):
        layer.register_forward_pre_hook(lambda _, inputs, name=name: keep(name, inputs[0]))
    outputs = model(_images(0.0).float().contiguous(memory_format=torch.channels_last))
    functional.cross_entropy(outputs, _targets("cpu")).backward()
    last = torch.channels_last
    return tuple(
        (name, *(each.detach().to(dtype).contiguous(memory_format=last) for each in (x, x.grad)))
        for name, x in found.items()
    )


def crossed(spec: str, activation: Tensor, gradient: Tensor) -> Crossed:
    """Sends an activation through a codec on the device where it is, and its gradient back."""
    there, back = codec(spec), codec(spec)
    packet = there.encode(activation)
    chosen = back.for_gradient_of(packet)
    return Crossed(there.decode(packet).cpu(), chosen.decode(chosen.encode(gradient)).cpu())


def apart(one: Tensor, other: Tensor) -> float:
    """Tells how far two tensors are apart, as a share of the second."""
    return float((one.double() - other.double()).norm() / other.double().norm())


def _steps(device: str) -> Iterator[str]:
    yield f"| codec | precision | stages | outputs, {device} from cpu | nudged | gradients | nudged |"
    yield "|---|---|---|---|---|---|---|"
    compiles = (False, True) if device == "cuda" else (False,)
    for dtype, compiled, spec in itertools.product(NUDGES, compiles, SPECS):
        found = differences(spec, dtype=dtype, compiled=compiled, device=device)
        figures = (found.outputs, found.nudged_outputs, found.gradients, found.nudged_gradients)
        yield _row(spec, dtype, "compiled" if compiled else "eager", figures)


def _crossings(device: str) -> Iterator[str]:
    yield f"| codec | precision | cut | error of activations | {device} from cpu | of gradients | {device} from cpu |"
    yield "|---|---|---|---|---|---|---|"
    for dtype, spec in itertools.product((torch.float32, torch.bfloat16), SPECS):
        for name, activation, gradient in crossing(dtype):
            here = crossed(spec, activation, gradient)
            there = crossed(spec, activation.to(device), gradient.to(device))
            figures = (apart(here.activation, activation), apart(there.activation, here.activation))
            figures += (apart(here.gradient, gradient), apart(there.gradient, here.gradient))
            yield _row(spec, dtype, name, figures)


def _row(spec: str, dtype: torch.dtype, place: str, figures: tuple[float, ...]) -> str:
    words = [f"`{spec}`".replace("|", "\\|"), str(dtype).removeprefix("torch."), place]
    return f"| {' | '.join([*words, *(f'{value:.1e}' for value in figures)])} |"


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    other = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    for line in (*_crossings(other), "", *_steps(other)):
        print(line, flush=True)  # noqa: T201
