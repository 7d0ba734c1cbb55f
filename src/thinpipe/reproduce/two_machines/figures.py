"""The figures of a row, from what its batches cost; a megabyte is 2**20 bytes, as in Epipe's report.

::

    average          bytes of one way / computation time         Epipe's: what nobody would have to stall at
    average, wall    bytes of one way / total time               what the link did carry
    peak, client     sent by the client in its busiest 100 ms
    peak, server     received by the server in its busiest 100 ms

Both ways carry equal tensors: activations of one cut and gradients of the other. The ratio is to the tensors as they
were before any bottleneck, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from statistics import median

from thinpipe.remote.cost import StepCost, summary

MEGABYTE = 2**20
COMPUTATION = "computation"
"""The name of the samples of batches with nothing on the wire."""

_MEANS = {
    "encode_s": "encode",
    "decode_s": "decode",
    "stalled_s": "stalled",
    "server_encode_s": "server_encode",
    "server_decode_s": "server_decode",
    "server_stalled_s": "server_stalled",
}
_BYTES = {
    "sent_bytes": "sent",
    "received_bytes": "received",
    "raw_sent_bytes": "raw_sent",
    "raw_received_bytes": "raw_received",
}


def figures(costs: Sequence[StepCost], computation: Sequence[float], row_bytes: int) -> dict[str, float | None]:
    """Sums up a row: of totals and computation the median batch, of peaks the largest, of what else there is the mean.

    Args:
        costs: of its batches.
        computation: seconds of batches with nothing on the wire; none where that is not known.
        row_bytes: of the tensors that one row has at both cuts, one way, before any bottleneck and in float32.
    """
    found = summary(costs)
    total, way = median(cost.seconds for cost in costs), (found["sent"] + found["received"]) / 2
    alone = median(computation) if computation else None
    return {
        "total_s": round(total, 5),
        "computation_s": None if alone is None else round(alone, 5),
        "ratio": round(way / (row_bytes * found["rows"]), 5),
        "average_mb_s": None if alone is None else round(way / MEGABYTE / alone, 3),
        "average_wall_mb_s": round(way / MEGABYTE / total, 3),
        "peak_client_mb_s": round(found["peak_sent"] / MEGABYTE, 3),
        "peak_server_mb_s": round(found["server_peak_received"] / MEGABYTE, 3),
        "throughput": round(found["rows"] / total, 3),
        **{name: round(found[field], 5) for name, field in _MEANS.items()},
        **{name: round(found[field]) for name, field in _BYTES.items()},
    }


def samples(costs: Sequence[StepCost], computation: Sequence[float]) -> dict[str, list[float]]:
    """Lists what was measured of every batch by the names of ``StepCost``, and the batches with nothing on the wire."""
    names = [each.name for each in fields(StepCost) if each.name not in ("step", "rows")]
    return {**{name: [getattr(cost, name) for cost in costs] for name in names}, COMPUTATION: list(computation)}
