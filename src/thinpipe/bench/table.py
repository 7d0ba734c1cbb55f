"""What a published table is made of: a network, its training, and rows that differ in how it is cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Network: TypeAlias = Literal["unet", "amoebanetd", "resnet101", "resnet18"]
Mode: TypeAlias = Literal["always", "except_last", "never"]


@dataclass(frozen=True, kw_only=True)
class Published:
    """What was printed for a row; None where nothing was.

    Args:
        throughput: samples a second.
        speedup: over the row that the table compares with.
        total: peak memory reserved, summed over devices, in GiB.
        activations: of that, what is not parameters, gradients and averages, where it was printed apart.
        utilization: the share of time in which a GPU was busy.
    """

    throughput: float | None = None
    speedup: float | None = None
    total: float | None = None
    activations: float | None = None
    utilization: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table.

    Args:
        name: as published.
        sizes: of the network: (B, C) of a U-Net, (L, D) of an AmoebaNet-D, none of a ResNet.
        batch: rows of a batch.
        chunks: micro-batches asked for.
        balance: layers of each stage; none for the bare module.
        checkpoint: which micro-batches are recomputed.
        recompute: what is repeated of them.
        rival: whether it is torchgpipe that trains it, not us.
        published: the authors' figures.
    """

    name: str
    sizes: tuple[int, ...] = ()
    batch: int
    chunks: int = 1
    balance: tuple[int, ...] = ()
    checkpoint: Mode = "except_last"
    recompute: Literal["all", "cheap"] = "all"
    rival: bool = False
    published: Published = field(default_factory=Published)

    @property
    def n(self) -> int:
        """The number of stages; 1 for the bare module."""
        return max(1, len(self.balance))

    @property
    def m(self) -> int:
        """The number of micro-batches, of which there are never more than rows."""
        return min(self.chunks, self.batch)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of the page.

    Args:
        bench: the command that measures it.
        title: for people.
        network: what is trained.
        pixels: height and width of the images.
        optimizer: plain SGD with a learning rate of 0.1, or RMSprop as it comes.
        copies: how many times a parameter is held in the published model memory: itself, its gradient, its averages.
        dataset: samples of a published epoch; 0 where two steps are all.
        reference: the row that the others are compared with.
        rows: its rows.
    """

    bench: str
    title: str
    network: Network
    pixels: int
    optimizer: Literal["sgd", "rmsprop"] = "sgd"
    copies: int = 2
    dataset: int = 0
    reference: str = "baseline"
    rows: tuple[Row, ...]
