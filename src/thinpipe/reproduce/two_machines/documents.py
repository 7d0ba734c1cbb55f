"""What Epipe's report says of two machines, on CIFAR-10 at 224 pixels with batches of 64: its settings and figures.

The client was a CPU, the server a GTX 1080, and both were in one local network of about 455 MB/s.

Four things to know before a figure of theirs is set beside one of ours. Their megabyte is 2**20 bytes. Their average
bandwidth is the nominal bytes of one way over the computation time, so it is what a link would have to carry for nobody
to stall, and nothing that was measured. The last row is printed with 4 chunks; its charts have it at 8. The first row
of a bottleneck has a total that is less than its computation, which cannot be.

The report says SGD with a momentum of 0.1; the code that made it has none. All rows of ours follow the report. Each
micro-batch's mean gradient is added to those before it there, and ours are averaged: hence a rate for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thinpipe.bottleneck.ratios import DOCUMENTS as SIZES

BATCH, CHUNKS = 64, (1, 4, 8)
CUT = "before-relu"
_RATE = 0.005
"""The learning rate of one micro-batch."""

NONE = "none"
POWER = "power:3/3/power:7/3"
"""Rank 3 at the first cut and 7 at the second, three passes of the iteration a tensor."""
CONV = {name: "/".join(SIZES[name]) for name in ("0.097", "0.070")}
"""Bottlenecks by the ratio that they are called by."""

MISPRINTED = "Epipe's last row is printed with 4 chunks, where its charts have it at 8; it is beside ours with 8."
IMPOSSIBLE = (
    "Epipe prints a total of 0.38 s and a computation of 0.55 s for its bottleneck of 0.097 with 1 chunk, which cannot "
    "be; both are shown as they are printed."
)


def training(chunks: int) -> dict[str, Any]:
    """Says the report's settings in the fields of a recipe.

    Args:
        chunks: micro-batches.
    """
    return {"batch": BATCH, "chunks": chunks, "lr": step_size(chunks), "momentum": 0.1, "weight_decay": 0.0}


def step_size(chunks: int) -> float:
    """Tells the learning rate of a batch, whose gradient is the mean over its micro-batches."""
    return _RATE * chunks


@dataclass(frozen=True)
class Printed:
    """A row of the table.

    Args:
        codec: as it is written here.
        bottleneck: likewise.
        chunks: micro-batches.
        ratio: nominal bytes over those of the tensors.
        accuracy: after 40 epochs, in percent.
        average: MB/s over the computation time.
        peak_client: MB/s sent, at most.
        peak_server: MB/s received, at most.
        computation: seconds a batch with nothing on the wire.
        total: seconds a batch.
    """

    codec: str
    bottleneck: str
    chunks: int
    ratio: float
    accuracy: float
    average: float
    peak_client: float
    peak_server: float
    computation: float
    total: float

    def figures(self) -> dict[str, float | None]:
        """Says the same by the names of our results; they print no throughput, which follows from the total."""
        return {
            "ratio": self.ratio,
            "average_mb_s": self.average,
            "peak_client_mb_s": self.peak_client,
            "peak_server_mb_s": self.peak_server,
            "computation_s": self.computation,
            "total_s": self.total,
            "throughput": round(BATCH / self.total, 2),
        }


PRINTED = (
    Printed(NONE, NONE, 1, 1.0, 95.86, 236.07, 455, 454, 0.48, 2.47),
    Printed(NONE, NONE, 4, 1.0, 96.04, 343.37, 460, 457, 0.33, 2.15),
    Printed(NONE, NONE, 8, 1.0, 95.94, 323.75, 454, 458, 0.35, 2.07),
    Printed(NONE, CONV["0.097"], 1, 0.097, 96.01, 18.10, 147, 149, 0.55, 0.38),
    Printed(NONE, CONV["0.097"], 4, 0.097, 96.01, 29.27, 251, 253, 0.34, 0.38),
    Printed(NONE, CONV["0.097"], 8, 0.097, 96.01, 27.65, 252, 253, 0.36, 0.38),
    Printed(NONE, CONV["0.070"], 1, 0.070, 95.89, 13.92, 154, 148, 0.55, 0.62),
    Printed(NONE, CONV["0.070"], 4, 0.070, 95.89, 22.52, 254, 255, 0.34, 0.37),
    Printed(NONE, CONV["0.070"], 8, 0.070, 95.87, 21.27, 258, 261, 0.36, 0.37),
    Printed(POWER, NONE, 1, 0.101, 95.54, 20.50, 174, 177, 0.56, 0.66),
    Printed(POWER, NONE, 4, 0.101, 95.54, 32.80, 269, 249, 0.35, 0.43),
    Printed(POWER, NONE, 8, 0.101, 95.54, 31.03, 246, 248, 0.37, 0.43),
)


def printed(codec: str, bottleneck: str, chunks: int) -> Printed | None:
    """Finds a row."""
    wanted = (codec, bottleneck, chunks)
    return next((row for row in PRINTED if (row.codec, row.bottleneck, row.chunks) == wanted), None)
