"""Makes of a published row what is trained: the network, where it belongs, a batch, a loss and an optimizer."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinpipe.bench.table import Row, Table
from thinpipe.models import amoebanetd, resnet18, resnet101, unet
from thinpipe.runtime.pipe import Pipe

CLASSES = 1000


@dataclass(frozen=True)
class Workload:
    """One row, ready to be trained.

    Args:
        table: what all rows have in common.
        row: how this one is cut.
        devices: a device for each stage.
    """

    table: Table
    row: Row
    devices: list[torch.device]

    def settings(self) -> dict[str, Any]:
        """Lists what is trained and how it is cut, for a record."""
        return {
            "network": self.table.network,
            "sizes": list(self.row.sizes),
            "pixels": self.table.pixels,
            "batch": self.row.batch,
            "micro_batches": self.row.m,
            "balance": list(self.row.balance),
            "checkpoint": self.row.checkpoint if self.row.balance else None,
            "recompute": self.row.recompute if self.row.balance else None,
            "optimizer": self.table.optimizer,
            "devices": [str(device) for device in self.devices],
            **({"in_place": self.row.in_place} if self.table.network == "unet" else {}),
        }

    def network(self) -> nn.Sequential:
        """Builds the network on the device where it stays, so that it is never held twice.

        Where stages have different devices it is built on the CPU, and moved layer by layer.
        """
        one = len(set(self.devices)) == 1
        with self.devices[0] if one else nullcontext():
            return build(self.table, self.row)

    def module(self) -> nn.Module:
        """Builds what the row trains: the network in a Pipe or, as a rival, in torchgpipe's, or bare."""
        network, row = self.network(), self.row
        if not row.balance:
            return network
        if row.rival:
            return torchgpipes(network, row, self.devices)
        return Pipe(
            network,
            row.balance,
            devices=self.devices,
            chunks=row.chunks,
            checkpoint=row.checkpoint,
            recompute=row.recompute,
        )

    def batch(self) -> tuple[Tensor, Tensor]:
        """Draws images on the first device and a target on the last; where speed counts, a U-Net's is all ones."""
        rows, pixels = self.row.batch, self.table.pixels
        images = torch.rand(rows, 3, pixels, pixels, device=self.devices[0])
        if self.table.network == "unet":
            draw = torch.ones if self.table.dataset else torch.rand
            return images, draw(rows, 1, pixels, pixels, device=self.devices[-1])
        return images, torch.randint(CLASSES, (rows,), device=self.devices[-1])

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Compares images pixel by pixel, and labels by cross entropy."""
        if self.table.network == "unet":
            return functional.binary_cross_entropy_with_logits(output, target)
        return functional.cross_entropy(output, target)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Makes the optimizer.

        It updates parameters one by one: all at once takes a second copy of billions of them for a moment.
        """
        if self.table.optimizer == "rmsprop":
            return torch.optim.RMSprop(parameters, foreach=False)
        return torch.optim.SGD(parameters, lr=0.1, foreach=False)


def has_torchgpipe() -> bool:
    """Tells whether the rival is installed."""
    return importlib.util.find_spec("torchgpipe") is not None


def torchgpipes(network: nn.Sequential, row: Row, devices: list[torch.device]) -> nn.Module:
    """Makes torchgpipe's pipe of a row; skips must not leave their stage."""
    from torchgpipe import GPipe

    pipe: nn.Module = GPipe(network, list(row.balance), devices=devices, chunks=row.chunks, checkpoint=row.checkpoint)
    return pipe


def build(table: Table, row: Row) -> nn.Sequential:
    """Builds the network of a row, its "max_pool_3x3" being the published average."""
    if table.network == "unet":
        return unet(*row.sizes, in_place=row.in_place)
    if table.network == "amoebanetd":
        return amoebanetd(*row.sizes, num_classes=CLASSES, published_pooling=True)
    return {"resnet18": resnet18, "resnet101": resnet101}[table.network](num_classes=CLASSES)


def layer_count(table: Table, row: Row) -> int:
    """Counts the layers of a row's network without making its parameters."""
    with torch.device("meta"):
        return len(build(table, row))


def tiny(table: Table) -> Table:
    """Makes a table of the same shape that runs in seconds: the same stages, fewer and smaller layers and batches.

    A published epoch has as few samples as show that its last batch is smaller.
    """
    network = "resnet18" if table.network == "resnet101" else table.network
    sizes = {"unet": (1, 4), "amoebanetd": (3, 16)}.get(network, ())
    small = resized(replace(table, network=network, pixels=64, dataset=min(40, table.dataset)), sizes)

    def shortened(row: Row) -> Row:
        chunks = min(row.chunks, 8)
        return replace(row, chunks=chunks, batch=2 * max(2, chunks))

    return replace(small, rows=tuple(map(shortened, small.rows)))


def resized(table: Table, sizes: tuple[int, ...]) -> Table:
    """Gives all rows another size of the network, to whose layers their balance is stretched."""
    layers = layer_count(table, replace(table.rows[0], sizes=sizes))
    rows = (replace(row, sizes=sizes, balance=stretched(row.balance, layers)) for row in table.rows)
    return replace(table, rows=tuple(rows))


def with_batch(table: Table, batch: int) -> Table:
    """Gives all rows the same batch."""
    return replace(table, rows=tuple(replace(row, batch=batch) for row in table.rows))


def stretched(balance: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Stretches a balance to another number of layers, each stage keeping its share and at least one layer."""
    n, total = len(balance), sum(balance)
    ends = [0]
    for j, end in enumerate(accumulate(balance)):
        ends.append(min(max(ends[-1] + 1, round(end * layers / total)), layers - (n - 1 - j)))
    return tuple(b - a for a, b in pairwise(ends))


def parameter_count(table: Table, row: Row) -> int:
    """Counts the parameters of a row's network without making them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(table, row).parameters())
