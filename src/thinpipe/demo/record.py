"""Records the runs of the demo, a row for each codec, to be published beside the benchmarks' records."""

from __future__ import annotations

from collections.abc import Sequence

from thinpipe.bench.record import Machine, Record
from thinpipe.demo import NONE, RECIPE
from thinpipe.demo.compare import CHUNKS, Demo, Trained


def record_of(each: Trained, done: Sequence[Trained], demo: Demo) -> Record:
    """Makes the record of a run.

    Args:
        each: the run.
        done: all of them; times are compared with the one without a codec, if it is there.
        demo: what was asked for.
    """
    seconds = each.figures.seconds
    base = next((other.figures.seconds for other in done if other.codec == NONE), None)
    return Record(
        "demo",
        {
            "accuracy": each.figures.accuracy,
            "bytes_per_batch": each.sent,
            "ratio": each.network["ratio"],
            "seconds_per_batch": seconds,
            "over_none": base / seconds if base and seconds else None,
        },
        {},
        {
            "codec": each.codec,
            "recipe": RECIPE,
            "epochs": demo.epochs,
            "chunks": CHUNKS,
            "seed": demo.seed,
            "bandwidth": demo.bandwidth,
        },
        Machine.current("pyzmq"),
        row=each.path.name,
    )
