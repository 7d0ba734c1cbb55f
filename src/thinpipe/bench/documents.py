"""What Epipe reports of data parallel training and of its pipeline.

Copied from Epipe's main page and from its report "speed and acc": CIFAR-10 at 224 pixels and GLUE's RTE at 128 tokens,
on up to four GPUs of one machine, which are not named. Their timers were not synchronised with the GPUs, see ``Timed``.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinpipe.bench.shapes import MOBILENET, ROBERTA, VGG

DDP, CLIENT, HALVES, TORCHGPIPE = "ddp", "client", "halves", "torchgpipe"
"""Ways to train: data parallel, a pipeline whose first device has the first and last layers, one whose first device has
a good share of both ends ("separated averagely"), and the first cut run by torchgpipe ("origin code")."""


@dataclass(frozen=True)
class Compared:
    """A row of Epipe's tables of throughput.

    Args:
        model: what was trained.
        way: ``ddp``, ``client``, ``halves`` or ``torchgpipe``.
        devices: GPUs.
        batch: of all of them together, as the code had it.
        throughput: samples a second.
        chunks: micro-batches of a pipeline (default: of data parallel training, 1).
        again: the throughput that its second table of RoBERTa prints of the same row (default: none).
    """

    model: str
    way: str
    devices: int
    batch: int
    throughput: float
    chunks: int = 1
    again: float | None = None

    @property
    def name(self) -> str:
        """What Epipe calls it."""
        if self.way == DDP:
            return f"Dataparallel-{self.devices}gpu"
        told = {CLIENT: "", HALVES: ", separated averagely", TORCHGPIPE: "(origin code)"}
        return f"Pipeline-{self.devices}gpu{told[self.way]}"

    @property
    def over_base(self) -> float:
        """How many times as fast it is as data parallel training on two GPUs: Epipe's "speed up"."""
        return self.throughput / base_of(self.model).throughput

    @property
    def at_equal_batch(self) -> float | None:
        """A pipeline over data parallel training on as many GPUs with the same batch; None where that is unknown."""
        if self.way == DDP:
            return None
        for row in COMPARED:
            if (row.model, row.way, row.devices, row.batch) == (self.model, DDP, self.devices, self.batch):
                return self.throughput / row.throughput
        return None


# Their data parallel program of CIFAR-10 takes 64 images on each GPU: "64" of two GPUs is a batch of 128.
COMPARED = (
    Compared(MOBILENET, DDP, 2, 128, 376.47),
    Compared(MOBILENET, CLIENT, 2, 64, 228.57, 4),
    Compared(MOBILENET, TORCHGPIPE, 2, 64, 213.33, 4),
    Compared(MOBILENET, HALVES, 2, 64, 318.74, 4),
    Compared(MOBILENET, CLIENT, 4, 256, 400.30, 4),
    Compared(MOBILENET, TORCHGPIPE, 4, 256, 419.67, 4),
    Compared(MOBILENET, CLIENT, 4, 256, 397.30, 8),
    Compared(MOBILENET, DDP, 4, 256, 627.22),
    Compared(ROBERTA, DDP, 2, 32, 76.19, again=76.19),
    Compared(ROBERTA, CLIENT, 2, 32, 61.53, 4, again=62.19),
    Compared(ROBERTA, CLIENT, 2, 64, 68.82, 4, again=69.57),
    Compared(ROBERTA, CLIENT, 4, 64, 106.40, 4),
    Compared(ROBERTA, CLIENT, 4, 64, 96.40, 2),
    Compared(ROBERTA, DDP, 4, 64, 95.53, again=94.12),
    Compared(ROBERTA, DDP, 3, 48, 90.56),
    Compared(ROBERTA, DDP, 2, 64, 98.46),
    Compared(ROBERTA, DDP, 3, 96, 111.67),
    Compared(ROBERTA, DDP, 4, 128, 121.93),
    Compared(ROBERTA, CLIENT, 2, 32, 64.03, 2),
)


def base_of(model: str) -> Compared:
    """Finds the row that Epipe's speed-ups are over: data parallel training on two GPUs."""
    return next(row for row in COMPARED if (row.model, row.way, row.devices) == (model, DDP, 2))


def compared(model: str, devices: int) -> tuple[Compared, ...]:
    """Lists the rows of a model on so many GPUs."""
    return tuple(row for row in COMPARED if (row.model, row.devices) == (model, devices))


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
