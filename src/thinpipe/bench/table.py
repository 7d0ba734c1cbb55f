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
        parameters: how many, as printed.
        throughput: samples a second.
        speedup: over the row that the table compares with.
        total: peak memory reserved, summed over devices, in GiB.
        model: memory of parameters, gradients and averages, in GiB, where it was printed apart from activations.
        activations: the rest of the peak, in GiB, where it was printed apart.
        utilization: the share of time in which a GPU was busy.
    """

    parameters: str = ""
    throughput: float | None = None
    speedup: float | None = None
    total: float | None = None
    model: float | None = None
    activations: float | None = None
    utilization: float | None = None


@dataclass(frozen=True, kw_only=True)
class Huang:
    """What torchgpipe's page repeats of GPipe's paper, by Huang et al., for a row, in the paper's units.

    Args:
        parameters: how many.
        model: memory of the model.
        activations: peak memory of activations.
        speedup: over the row that the table compares with.
    """

    parameters: str = ""
    model: str = ""
    activations: str = ""
    speedup: str = ""


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
        in_place: whether the LeakyReLU of a U-Net works in place, which the published one does not.
        limit: GiB of each GPU that may be used; None for all there are.
        published: the authors' figures.
        huang: those of GPipe's paper; None where none are printed beside them.
    """

    name: str
    sizes: tuple[int, ...] = ()
    batch: int
    chunks: int = 1
    balance: tuple[int, ...] = ()
    checkpoint: Mode = "except_last"
    recompute: Literal["all", "cheap"] = "all"
    rival: bool = False
    in_place: bool = False
    limit: float | None = None
    published: Published = field(default_factory=Published)
    huang: Huang | None = None

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

    def row_of(self, record: str) -> Row | None:
        """Finds the row that a record is of, by its name: the row's, and what was different (see ``naming``)."""
        found = [row for row in self.rows if f"{record}-".startswith(f"{row.name}-")]
        return max(found, key=lambda row: len(row.name), default=None)
