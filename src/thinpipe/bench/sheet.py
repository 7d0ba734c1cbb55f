"""Sets our figures beside the published ones: the same lines for the terminal, the page and the picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from thinpipe.bench.naming import compared_with
from thinpipe.bench.record import Record
from thinpipe.bench.table import Table

GROWING = (
    "The published batch grows with n and m, so the published speed-ups mix the gain of pipelining with that of a "
    "larger batch; --fixed-batch measures every row at one batch, without it each row has its published one."
)


@dataclass(frozen=True)
class Sheet:
    """A table to be shown.

    Args:
        title: above it.
        heads: of the columns.
        lines: its cells.
        notes: below it.
        measure: what the picture shows, and its unit.
        bars: the picture: for each row the value of each series, None where there is none.
    """

    title: str
    heads: list[str]
    lines: list[list[str]]
    notes: list[str]
    measure: str
    bars: dict[str, dict[str, float | None]] = field(default_factory=dict)


def cores_sheet(table: Table, records: Sequence[Record]) -> Sheet:
    """Shows how cells scale over CPU cores."""
    heads = ["cell", "batch", "speed-up", "torchgpipe", "ours/torchgpipe", "ideal, equal", "ideal, measured"]
    heads += ["ours/ideal", "ideal, at once", "ours/at once", "ours over n2m1", "published over n2m1"]
    lines, bars = [], {}
    for record in records:
        results, row = record.results, table.row_of(record.row)
        base = throughput_of(records, compared_with(table, row, record.row)) if row else None
        at_best = (results["ideal_partition"] or 0) * (results["micro_batching"] or 0)
        at_once = results.get("ideal_at_once")  # which older records lack
        lines.append(
            [
                record.row,
                str(record.settings["batch"]),
                number(results["speedup"], "{:.3f}x"),
                number(results["torchgpipe_speedup"], "{:.3f}x", missing="not installed"),
                number(results["over_torchgpipe"], "{:.3f}"),
                number(results["ideal_equal_stages"], "{:.3f}x"),
                number(at_best, "{:.3f}x"),
                number(results["of_ideal"], "{:.3f}"),
                number(at_once, "{:.3f}x"),
                number(results.get("of_ideal_at_once"), "{:.3f}"),
                number(ratio(results["throughput"], base), "{:.3f}x"),
                number(record.published["speedup_over_n2m1"], "{:.3f}x"),
            ]
        )
        bars[record.row] = {
            "ours": results["speedup"],
            "torchgpipe, same run": results["torchgpipe_speedup"],
            "ideal, measured": at_best,
            "ideal, at once": at_once,
        }
    models = (f"AmoebaNet-D {tuple(r.settings['sizes'])} at {r.settings['pixels']} pixels" for r in records)
    model = "; ".join(dict.fromkeys(models))
    notes = [
        f"{model}. One core a stage; speed-up over the bare network on one core, medians of ratios within rounds.",
        f"Our stages are {_workers(records)} with the schedule {_schedules(records)}, torchgpipe's are threads with "
        f"GPipe's; recomputed: {_recomputed(records)}. Published: torchgpipe's authors' speed-up on GPUs.",
        "Ideal, equal: n m / (m + n - 1). Ideal, measured: the least time of GPipe's schedule for the stages as "
        "profiled, recomputation included, with what micro-batches of this size gain or lose on one core. Ideal, at "
        "once: the same estimate from times of stages that were measured while all of them computed, each on its core; "
        "they share the memory's bandwidth. It leaves out messages and the optimizer. The schedule zb may do better: "
        "stages compute the gradients of weights while others go backward.",
        GROWING,
    ]
    return Sheet(
        "AmoebaNet-D, speed on CPU cores", heads, lines, notes + notes_of(records), "speed-up over one core", bars
    )


def _workers(records: Sequence[Record]) -> str:
    return " or ".join(dict.fromkeys(map(_seats, records)))


def _seats(record: Record) -> str:
    settings = record.settings
    own = ", each on a core of its own" if settings["pinned_to"] else ""
    rest = " and its messages on the cores left over" if settings["cores_of_messages"] else ""
    return f"{settings['workers']}{own}{rest}"


def _schedules(records: Sequence[Record]) -> str:
    return " or ".join(dict.fromkeys(r.settings["schedule"] for r in records))


def _recomputed(records: Sequence[Record]) -> str:
    return " or ".join(dict.fromkeys(r.settings["checkpoint"] for r in records))


def transparency_sheet(records: Sequence[Record]) -> Sheet:
    """Shows the test error after each epoch, mean and deviation over seeds."""
    heads = ["epoch", *(record.row for record in records)]
    curves = [list(zip(*record.samples.values(), strict=True)) for record in records]
    lines = [
        [str(epoch), *(spread(errors) if errors else "" for errors in column)]
        for epoch, column in enumerate(zip_longest(*curves), 1)
    ]
    seeds = ", ".join(f"{record.row} {len(record.samples)}" for record in records)
    notes = [
        f"Test error after each epoch, mean and deviation over seeds ({seeds}).",
        "In a pipe BatchNorm normalises a micro-batch and, unless deferred, moves its running statistics once a "
        "micro-batch: early test errors differ by that.",
    ]
    bars = {record.row: {"test error": record.results["error"]} for record in records}
    return Sheet("Transparency", heads, lines, notes + notes_of(records), "test error", bars)


def spread(values: Sequence[float]) -> str:
    """Writes shares as a mean and a deviation in percent."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2%} ± {100 * deviation:.2f}"


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Divides, where there is something to divide."""
    return None if ours is None or not theirs else ours / theirs


def throughput_of(records: Sequence[Record], row: str) -> float | None:
    """Finds the throughput of a row, if it was measured."""
    return next((record.results["throughput"] for record in records if record.row == row), None)


def number(value: float | None, form: str, record: Record | None = None, *, missing: str = "-") -> str:
    """Writes a figure, or why there is none: out of memory if the record says so, else what is given."""
    if value is not None:
        return form.format(value)
    return "out of memory" if record is not None and "out of memory" in record.notes else missing


def notes_of(records: Sequence[Record]) -> list[str]:
    """Gathers the notes of the rows, each once, with the rows it is about."""
    about: dict[str, list[str]] = {}
    for record in records:
        for note in record.notes:
            about.setdefault(note, []).append(record.row)
    return [f"{', '.join(rows)}: {note}." for note, rows in about.items()]
