"""What the variants of a cell on CPU cores train: the same network from the same weights, on the same batch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from thinpipe.bench.measure import Variant
from thinpipe.bench.workload import Workload, has_torchgpipe, torchgpipes
from thinpipe.runtime.pipe import Pipe


def drawn(workload: Workload, seed: int) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Builds the network and draws a batch, images and target: the same ones in every process."""
    torch.manual_seed(seed)
    network = workload.network()
    return network, *workload.batch()


class Trainings:
    """Makes training steps of a cell's variants, each of a copy of one network.

    Args:
        workload: the cell.
        network: where all variants begin.
        images: the batch.
        target: its labels.
    """

    def __init__(self, workload: Workload, network: nn.Sequential, images: Tensor, target: Tensor) -> None:
        self.workload, self.network = workload, network
        self.images, self.target = images, target

    def bare(self) -> Variant:
        """The whole batch at once."""
        return self._whole(copy.deepcopy(self.network))

    def one_core(self) -> Variant:
        """The micro-batches one after the other."""
        module, batch = copy.deepcopy(self.network), self.workload.row.batch
        sizes = [len(piece) for piece in self.images.tensor_split(self.workload.row.m)]

        def train() -> None:
            for x, y in zip(self.images.split(sizes), self.target.split(sizes), strict=True):
                (self.workload.loss(module(x), y) * (len(x) / batch)).backward()

        return self._step(module, train)

    def threads(self) -> Variant:
        """``Pipe``, whose stages are threads."""
        row = self.workload.row
        network, places = copy.deepcopy(self.network), self.workload.devices
        return self._whole(Pipe(network, row.balance, devices=places, chunks=row.chunks, checkpoint=row.checkpoint))

    def torchgpipe(self) -> Variant | None:
        """``GPipe``, None where it is not installed."""
        if not has_torchgpipe():
            return None
        return self._whole(torchgpipes(copy.deepcopy(self.network), self.workload.row, self.workload.devices))

    def _whole(self, module: nn.Module) -> Variant:
        return self._step(module, lambda: self.workload.loss(module(self.images), self.target).backward())

    def _step(self, module: nn.Module, train: Callable[[], None]) -> Variant:
        optimizer = self.workload.optimizer(module.parameters())

        def variant() -> None:
            train()
            optimizer.step()
            optimizer.zero_grad()

        return variant
