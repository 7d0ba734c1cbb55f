"""What the documents report of two machines, on CIFAR-10 at 224 pixels with batches of 64.

The client was a CPU, the server a GTX 1080, and both were in one local network of about 455 MB/s. The rows of learned
compression are left out here: it is part of a model, and no codec.

Three things to know before a figure of theirs is set beside one of ours. Their megabyte is 2**20 bytes. Their average
bandwidth is the nominal bytes of one way over the computation time, so it is what a link would have to carry for nobody
to stall, and nothing that was measured. The last row is printed with 4 chunks; its charts have it at 8.
"""

from __future__ import annotations

from dataclasses import dataclass

BATCH = 64


@dataclass(frozen=True)
class Printed:
    """A row of the table.

    Args:
        codec: as it is written here.
        chunks: micro-batches.
        ratio: nominal bytes over those of the tensors.
        average: MB/s over the computation time.
        peak_client: MB/s sent, at most.
        peak_server: MB/s received, at most.
        computation: seconds a batch with nothing on the wire.
        total: seconds a batch.
    """

    codec: str
    chunks: int
    ratio: float
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
    Printed("none", 1, 1.0, 236.07, 455, 454, 0.48, 2.47),
    Printed("none", 4, 1.0, 343.37, 460, 457, 0.33, 2.15),
    Printed("none", 8, 1.0, 323.75, 454, 458, 0.35, 2.07),
    Printed("power:3/power:7", 1, 0.101, 20.50, 174, 177, 0.56, 0.66),
    Printed("power:3/power:7", 4, 0.101, 32.80, 269, 249, 0.35, 0.43),
    Printed("power:3/power:7", 8, 0.101, 31.03, 246, 248, 0.37, 0.43),
)


def printed(codec: str, chunks: int) -> Printed | None:
    """Finds a row."""
    return next((row for row in PRINTED if (row.codec, row.chunks) == (codec, chunks)), None)
