"""Trains the same network with and without a pipe, from the same seeds, and compares their test errors by epoch.

Both start from the same weights and see the same batches in the same order, the last and smaller one included.
BatchNorm is the one layer that can tell: it normalises what it sees at once, a micro-batch in a pipe. Not deferred, it
also moves its running statistics once a micro-batch, so that in the first epochs they are further than the bare
network's, and the test error with them. Without BatchNorm, or in one micro-batch, the curves are the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from thinpipe.bench.cifar import Pictures
from thinpipe.bench.devices import as_published
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.workload import stretched
from thinpipe.data.digits import load_digits
from thinpipe.models import resnet18
from thinpipe.runtime.pipe import Pipe

BENCH = "transparency"
EPOCHS, CHUNKS, STAGES = 10, 4, 2
WAYS = ("bare", "pipe", "pipe-deferred")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained, and how it is cut.

    Args:
        epochs: over the training images.
        seeds: how many runs, from seed 0 on.
        batch: rows of a batch; the last one is smaller.
        rate: the first learning rate, which falls to zero step by step.
        chunks: micro-batches of the pipe.
        deferred: whether BatchNorm's running statistics move once a batch.
    """

    epochs: int
    seeds: int
    batch: int = 128
    rate: float = 0.05
    chunks: int = CHUNKS
    deferred: bool = False

    def different(self, way: str, stages: int) -> list[str]:
        """Says in a record's name what is not as usual, seeds apart, of which more replace fewer."""
        words = [] if self.epochs == EPOCHS else [f"{self.epochs}-epochs"]
        if way != "bare":
            words += [] if self.chunks == CHUNKS else [f"{self.chunks}-chunks"]
            words += [] if stages == STAGES else [f"{stages}-stages"]
        return words


def digits() -> Pictures:
    """Loads handwritten digits, for want of larger images."""
    data = load_digits()
    return Pictures("digits", data.train_images, data.train_labels, data.test_images, data.test_labels)


def few(data: Pictures, rows: int) -> Pictures:
    """Keeps the first images, to try a command; says so in their name."""
    kept = data.train_images[:rows], data.train_labels[:rows], data.test_images[:rows], data.test_labels[:rows]
    return Pictures(f"{data.name}-tiny", *kept)


def network(data: Pictures) -> nn.Sequential:
    """Builds ResNet-18 for colour images, and a small convolutional network with BatchNorm for digits."""
    if data.train_images.size(1) == 3:
        return resnet18(num_classes=10)
    widths = ((1, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2))
    layers: list[nn.Module] = []
    for channels, wider, stride in widths:
        layers += [nn.Conv2d(channels, wider, 3, stride, padding=1, bias=False), nn.BatchNorm2d(wider), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def compare(
    data: Pictures,
    plan: Plan,
    devices: Sequence[torch.device],
    tick: Callable[[str], None] = lambda _: None,
    begun: Callable[[str], Record | None] = lambda _: None,
) -> Iterator[list[Record]]:
    """Trains bare and in a pipe from every seed.

    Args:
        data: the images.
        plan: what is trained.
        devices: a device for each stage; the bare network has the first.
        tick: called after every epoch with the name of the row, for a progress bar.
        begun: finds an earlier record by the name of its row. Seeds that the same code trained in the same way on the
            same kind of machine are taken from it.

    Yields:
        After each seed a record of the bare network and one of the pipe: the error after each epoch, by seed.
    """

    def piped(model: nn.Sequential) -> nn.Module:
        balance = stretched((1,) * len(devices), len(model))
        return Pipe(model, balance, devices=devices, chunks=plan.chunks, deferred_batch_norm=plan.deferred)

    # Where the output is, and so the label belongs, differs with the number of devices.
    ways: dict[str, tuple[Callable[[nn.Sequential], nn.Module], torch.device]] = {
        "bare": (lambda model: model.to(devices[0]), devices[0]),
        "pipe-deferred" if plan.deferred else "pipe": (piped, devices[-1]),
    }
    rows = {way: "-".join((data.name.lower(), way, *plan.different(way, len(devices)))) for way in ways}
    curves = {way: _continued(begun(rows[way]), _record(rows[way], way, data, plan, devices, {})) for way in ways}
    for seed in range(plan.seeds):
        for way, (build, last) in ways.items():
            if f"seed {seed}" not in curves[way]:
                with as_published():
                    torch.manual_seed(seed)
                    module = build(network(data))
                    errors = _train(module, data, plan, seed, devices[0], last, partial(tick, rows[way]))
                curves[way][f"seed {seed}"] = errors
        yield [_record(rows[way], way, data, plan, devices, curves[way]) for way in ways]


def _continued(before: Record | None, now: Record) -> dict[str, list[float]]:
    """Takes over the curves of an earlier record, if it differs in the number of its seeds at most."""
    if before is None or now.commit is None or now.is_dirty:  # of which nobody knows whether it is the same code
        return {}
    same = (before.settings | {"seeds": None}, before.machine, before.commit) == (
        now.settings | {"seeds": None},
        now.machine,
        now.commit,
    )
    return dict(before.samples) if same else {}


def _record(
    row: str, way: str, data: Pictures, plan: Plan, devices: Sequence[torch.device], curves: dict[str, list[float]]
) -> Record:
    finals = [curve[-1] for curve in curves.values()]
    results: dict[str, float | None] = {
        "error": statistics.mean(finals) if finals else None,
        "deviation": statistics.stdev(finals) if len(finals) > 1 else None,
    }
    settings = {
        "data": data.name,
        "train_images": len(data.train_labels),
        "test_images": len(data.test_labels),
        **vars(plan),
        "seeds": len(curves),
        "stages": len(devices),
        "devices": [str(device) for device in devices],
        "samples": "test error after each epoch",
    }
    if way == "bare":
        settings |= {"stages": 1, "chunks": 1, "deferred": False, "devices": settings["devices"][:1]}
    return Record(BENCH, results, dict(curves), settings, Machine.current(), row)


def _train(
    module: nn.Module,
    data: Pictures,
    plan: Plan,
    seed: int,
    first: torch.device,
    last: torch.device,
    tick: Callable[[], None],
) -> list[float]:
    """Trains from one seed; returns the test error after each epoch."""
    images, labels = data.train_images.to(first), data.train_labels.to(last)
    shuffle = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(module.parameters(), plan.rate, momentum=0.9, weight_decay=1e-4, nesterov=True)
    steps = plan.epochs * -(-len(labels) // plan.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    errors = []
    for _ in range(plan.epochs):
        module.train()
        for rows in torch.randperm(len(labels), generator=shuffle).split(plan.batch):
            optimizer.zero_grad()
            functional.cross_entropy(module(images[rows.to(first)]), labels[rows.to(last)]).backward()
            optimizer.step()
            schedule.step()
        errors.append(_error(module, data, first, last))
        tick()
    return errors


@torch.no_grad()
def _error(module: nn.Module, data: Pictures, first: torch.device, last: torch.device) -> float:
    module.eval()
    parts = zip(data.test_images.split(500), data.test_labels.split(500), strict=True)
    wrong = sum(int((module(x.to(first)).argmax(1) != y.to(last)).sum()) for x, y in parts)
    return wrong / len(data.test_labels)
