"""Captures what crosses cuts of real networks in the middle of training: activations, and their gradients.

Codecs are chosen by tensors like these. A Gaussian has neither the zeros of a ReLU, nor the few large features of a
transformer, nor the gradients of the rows a network is already sure of.

A file a cut, ``mobilenetv2-cut1.safetensors``, holds the two tensors ``activation`` and ``gradient`` in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from thinpipe.extras import need

SUFFIX = ".safetensors"

Tick: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How long a network is trained before it is looked at.

    Args:
        steps: of training before the step that is captured; with none, gradients are those of a fresh classifier.
        batch: rows of a batch.
        seed: of weights and of the order of the data.
    """

    steps: int = 25
    batch: int = 16
    seed: int = 0


@dataclass(frozen=True)
class Subject:
    """A network in training.

    Args:
        name: begins the names of its files.
        network: is trained.
        cuts: the module after which each cut goes, by the name of the cut.
        loss: computes the loss of the rows it is given.
        rows: how many rows of data there are.
        optimizer: makes the steps.
    """

    name: str
    network: nn.Module
    cuts: Mapping[str, nn.Module]
    loss: Callable[[Tensor], Tensor]
    rows: int
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class Captured:
    """What was seen in training.

    Args:
        cuts: the activation and the gradient at each cut.
        losses: of every step; they should fall, or the gradients are of nothing that is being learnt.
    """

    cuts: dict[str, dict[str, Tensor]]
    losses: list[float]


def capture(subject: Subject, plan: Plan, tick: Tick = lambda _: None) -> Captured:
    """Trains, then takes one more step and keeps what crossed the cuts in it.

    Args:
        subject: the network.
        plan: how long to train.
        tick: called after every step with the subject's name, for a progress bar.
    """
    shuffle = torch.Generator().manual_seed(plan.seed)
    order = torch.randperm(subject.rows, generator=shuffle)
    places = torch.arange((plan.steps + 1) * plan.batch) % subject.rows
    *batches, last = order[places].split(plan.batch)
    subject.network.train()
    losses = []
    for rows in batches:
        losses.append(_step(subject, rows))
        tick(subject.name)
    with _watched(subject.cuts) as seen:
        losses.append(_step(subject, last))
    tick(subject.name)
    return Captured(seen, losses)


def _step(subject: Subject, rows: Tensor) -> float:
    subject.optimizer.zero_grad()
    loss = subject.loss(rows)
    loss.backward()
    subject.optimizer.step()
    return loss.item()


@contextmanager
def _watched(cuts: Mapping[str, nn.Module]) -> Iterator[dict[str, dict[str, Tensor]]]:
    """Copies what leaves the modules, and what comes back to them."""
    seen: dict[str, dict[str, Tensor]] = {name: {} for name in cuts}

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            seen[name]["activation"] = _kept(tensor)
            tensor.register_hook(lambda gradient: seen[name].update(gradient=_kept(gradient)))

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in cuts.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32).clone(memory_format=torch.contiguous_format)


def save(folder: Path, captured: Mapping[str, Mapping[str, Tensor]], about: str) -> list[Path]:
    """Writes a file a cut, and returns where they are.

    Args:
        folder: gets the files.
        captured: the tensors of each cut, by the cut's full name.
        about: how they came to be, for whoever finds the files.
    """
    write = _safetensors().save_file
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, tensors in captured.items():
        paths.append(folder / f"{name}{SUFFIX}")
        write(dict(tensors), paths[-1], metadata={"about": about})
    return paths


def load(folder: Path) -> dict[str, Tensor]:
    """Reads every tensor of floating point in a folder's files, each named by its file and its own name.

    Raises:
        ValueError: there is none.
    """
    read = _safetensors().load_file
    files = sorted(folder.glob(f"*{SUFFIX}"))
    found = {f"{file.stem}-{name}": tensor for file in files for name, tensor in sorted(read(file).items())}
    found = {name: tensor.contiguous() for name, tensor in found.items() if tensor.is_floating_point()}
    if not found:
        raise ValueError(f"{folder} has no {SUFFIX} file with tensors; thinpipe bench capture writes some")
    return found


def _safetensors() -> Any:
    need("captured tensors", "safetensors")
    import safetensors.torch

    return safetensors.torch
