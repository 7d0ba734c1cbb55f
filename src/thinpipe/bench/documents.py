"""What the documents that this project began with report of data parallel training and of their pipeline.

Copied from the project's report "speed and acc": CIFAR-10 at 224 pixels and GLUE's RTE at 128 tokens, on up to four
GPUs of one machine, which are not named. Their timers were not synchronised with the GPUs, see ``Timed``.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinpipe.bench.shapes import MOBILENET, ROBERTA, VGG


@dataclass(frozen=True)
class Compared:
    """A row of "parallel pipeline vs data-parallel".

    Args:
        model: what was trained.
        way: ``ddp``; ``client``, a pipeline whose first device has the first and the last layer; or ``even``.
        devices: GPUs.
        batch: of all of them together.
        throughput: samples a second.
        chunks: micro-batches of a pipeline.
    """

    model: str
    way: str
    devices: int
    batch: int
    throughput: float
    chunks: int | None = None


COMPARED = (
    Compared(MOBILENET, "client", 2, 64, 228.57, 4),
    Compared(MOBILENET, "ddp", 2, 64, 376.47),
    Compared(MOBILENET, "client", 4, 256, 400.30, 4),
    Compared(MOBILENET, "client", 4, 256, 397.30, 8),
    Compared(MOBILENET, "ddp", 4, 256, 627.22),
    Compared(ROBERTA, "client", 2, 32, 61.53, 4),
    Compared(ROBERTA, "client", 2, 64, 68.82, 4),
    Compared(ROBERTA, "ddp", 2, 32, 76.19),
    Compared(ROBERTA, "client", 4, 64, 106.40, 4),
    Compared(ROBERTA, "client", 4, 64, 96.40, 2),
    Compared(ROBERTA, "ddp", 4, 64, 95.53),
    Compared(MOBILENET, "even", 2, 64, 318.74, 4),
)


def compared(model: str, way: str, devices: int) -> tuple[Compared, float] | None:
    """Finds a row, the first that has a data parallel one of the same batch beside it, and how it stands to that."""
    rows = [row for row in COMPARED if row.model == model and row.devices == devices]
    for row in rows:
        for base in rows:
            if row.way == way and base.way == "ddp" and base.batch == row.batch:
                return row, row.throughput / base.throughput
    return None


@dataclass(frozen=True)
class Timed:
    """A row of the tables that ask why data parallel training of RoBERTa is slow; seconds.

    The clock was read without waiting for the GPU. "Data" runs from the end of a step until the next batch was handed
    to a copy that does not block, so it is the wait for the loader and no gradient's. "Backward" runs from before the
    backward until the loss was read back after the optimizer's step, so it has in it whatever of the forward was still
    queued, the backward, the all-reduce and the optimizer.

    Args:
        model: what was trained.
        optimizer: with what.
        devices: GPUs.
        batch: of each of them.
        step: the whole.
        data: what is called data transfer time.
        backward: what is called backward time.
    """

    model: str
    optimizer: str
    devices: int
    batch: int
    step: float
    data: float
    backward: float


TIMED = (
    Timed(MOBILENET, "sgd", 2, 64, 0.341, 0.064, 0.243),
    Timed(MOBILENET, "sgd", 3, 64, 0.364, 0.098, 0.241),
    Timed(MOBILENET, "sgd", 4, 64, 0.389, 0.130, 0.240),
    Timed(MOBILENET, "adamw", 2, 64, 0.323, 0.064, 0.246),
    Timed(MOBILENET, "adamw", 4, 16, 0.397, 0.132, 0.248),  # 16 as printed; the times are those of 64
    Timed(VGG, "sgd", 2, 64, 0.704, 0.064, 0.636),
    Timed(VGG, "sgd", 4, 64, 0.779, 0.135, 0.640),
    Timed(VGG, "adamw", 2, 64, 0.730, 0.064, 0.664),
    Timed(VGG, "adamw", 4, 64, 0.817, 0.142, 0.674),
    Timed(ROBERTA, "sgd", 2, 16, 0.252, 0.039, 0.097),
    Timed(ROBERTA, "sgd", 4, 16, 0.435, 0.171, 0.091),
    Timed(ROBERTA, "adamw", 2, 16, 0.401, 0.037, 0.244),
    Timed(ROBERTA, "adamw", 3, 16, 0.519, 0.100, 0.277),
    Timed(ROBERTA, "adamw", 4, 16, 0.657, 0.161, 0.310),
)


def timed(model: str, optimizer: str, devices: int) -> Timed | None:
    """Finds a row."""
    wanted = (model, optimizer, devices)
    return next((row for row in TIMED if (row.model, row.optimizer, row.devices) == wanted), None)
