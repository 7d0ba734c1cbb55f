"""The figures of a row, from what its batches cost; a megabyte is 2**20 bytes, as in the documents.

::

    average          bytes of one way / computation time         the documents': what nobody would have to stall at
    average, wall    bytes of one way / total time               what the link did carry
    peak, client     sent by the client in its busiest 100 ms
    peak, server     received by the server in its busiest 100 ms

Both ways carry equal tensors: activations of one cut and gradients of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from statistics import mean

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


def figures(costs: Sequence[StepCost], computation: Sequence[float]) -> dict[str, float | None]:
    """Sums up a row: means over its batches, of peaks the largest.

    Args:
        costs: of its batches.
        computation: seconds of batches with nothing on the wire; none where that is not known.
    """
    found = summary(costs)
    total, way = found["seconds"], (found["sent"] + found["received"]) / 2 / MEGABYTE
    alone = mean(computation) if computation else None
    return {
        "total_s": round(total, 5),
        "computation_s": None if alone is None else round(alone, 5),
        "ratio": round(found["ratio"], 5),
        "average_mb_s": None if alone is None else round(way / alone, 3),
        "average_wall_mb_s": round(way / total, 3),
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
