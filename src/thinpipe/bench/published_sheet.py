"""Sets what was measured of torchgpipe's tables beside what was published: a line for each record of a row.

A published row of which nothing is recorded has its published figures alone. What differs from the published setting is
in a record's name (see ``naming``), in a column, or in a note that names the rows it is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thinpipe.bench.naming import EXPANDABLE, compared_with
from thinpipe.bench.record import Record
from thinpipe.bench.sheet import GROWING, Sheet, notes_of, number, ratio, throughput_of
from thinpipe.bench.speed import PUBLISHED
from thinpipe.bench.table import Published, Row, Table
from thinpipe.bench.timeline import NOT_RUN

_APART = (
    "Activations: what was reserved less the model, as torchgpipe computes it. Huang et al. are the authors of GPipe's "
    "paper; their figures are in GB, as torchgpipe's page repeats them. Some ReLUs of our AmoebaNet-D overwrite their "
    "input, which changes nothing of what is kept for the backward pass. Of that ours has at least 99.7% of "
    "torchgpipe's, for its mean over the last image keeps none of it."
)


def memory_sheet(table: Table, records: Sequence[Record]) -> Sheet:
    """Shows peak memory: in all, or that of the model and that of activations, as it was published.

    Args:
        table: whose rows are shown, published ones even where nothing is recorded.
        records: of its rows.
    """
    apart = any(row.published.model for row in table.rows)
    heads = ["row", "size", "parameters", "n x m", "GPUs", "limit", "reserved"]
    if apart:
        heads += ["model", "activations", "torchgpipe: model", "torchgpipe: activations"]
        heads += ["Huang et al.: parameters, model, activations"]
    else:
        heads += ["allocated", "model", "published", "ours/published"]
    lines, bars = [], {}
    for row, record in _by_row(table, records):
        ours = record.results["activations_gib" if apart else "reserved_gib"] if record else None
        published = row.published.activations if apart else row.published.total
        lines.append(
            [
                *_cut(row, record),
                *_capped(record),
                _gib(record, "reserved_gib"),
                *(_memory_apart(row, record) if apart else _memory(row, record)),
            ]
        )
        bars[record.row if record else row.name] = {"ours": ours, "torchgpipe" if apart else "published": published}
    notes = [
        "Peak memory of two steps, summed over GPUs: reserved is what the allocator had taken from them"
        f"{'' if apart else ', and allocated what tensors had of that'}.",
        *_missing(table, records),
        "Model memory: the parameters' bytes times "
        f"{table.copies}, for the gradient and whatever the optimizer keeps of each.",
        *([_APART] * apart),
        *_one_gpu(records),
        *_allocator(records),
        *_in_place(records),
    ]
    if any(record.settings["gradients_cleared"] for record in records):
        notes.append("Gradients were cleared between the steps, which the published runs did not do.")
    measure = "peak memory of activations, GiB" if apart else "peak memory reserved, GiB"
    return Sheet(table.title, heads, lines, notes + notes_of(records), measure, bars)


def _memory(row: Row, record: Record | None) -> list[str]:
    published = row.published.total
    ours = record.results["reserved_gib"] if record else None
    return [
        _gib(record, "allocated_gib"),
        number(record.results["model_gib"] if record else None, "{:.2f} GiB"),
        number(published, "{:.2f} GiB"),
        number(ratio(ours, published), "{:.2f}"),
    ]


def _memory_apart(row: Row, record: Record | None) -> list[str]:
    published, huang = row.published, row.huang
    return [
        number(record.results["model_gib"] if record else None, "{:.2f} GiB"),
        _gib(record, "activations_gib"),
        number(published.model, "{:.2f} GiB"),
        number(published.activations, "{:.2f} GiB", missing="out of memory"),
        f"{huang.parameters}, {huang.model}, {huang.activations}" if huang else "-",
    ]


def _gib(record: Record | None, name: str) -> str:
    return number(record.results[name], "{:.2f} GiB", record) if record else "-"


def _capped(record: Record | None) -> list[str]:
    """Writes how many GPUs there were, and how much of each could be used."""
    if record is None:
        return ["-", "-"]
    limit = record.settings.get("limit_gib")
    return [_gpus(record), "none" if limit is None else f"{limit:g} GiB"]


def _gpus(record: Record | None) -> str:
    different = set(record.settings["devices"]) if record else set()
    return "-" if not different else "CPU" if "cpu" in different else str(len(different))


def _one_gpu(records: Sequence[Record]) -> Iterator[str]:
    """Says where stages shared a GPU, whose peak is at most the sum of the peaks of several."""
    if rows := _sharing(records):
        yield (
            f"{rows}: all stages on one device, the peak of a sum, where the published figure is a sum of "
            "the peaks of as many devices as stages. Those need not come at the same time, so ours may be less for "
            "that alone."
        )


def _sharing(records: Sequence[Record]) -> str:
    """Names the rows whose stages had a GPU in common."""
    devices = {each.row: each.settings["devices"] for each in records}
    return ", ".join(row for row, names in devices.items() if len(set(names)) < len(names) and "cpu" not in names)


def _allocator(records: Sequence[Record]) -> Iterator[str]:
    rows = [each.row for each in records if EXPANDABLE in each.settings.get("environment", {}).values()]
    if rows:
        yield f"{', '.join(rows)}: with the allocator's expandable segments, which published runs did not have."


def _in_place(records: Sequence[Record]) -> Iterator[str]:
    if any(record.settings.get("in_place") for record in records):
        yield (
            "`-in-place`: each LeakyReLU overwrites its input. The published ones do not, and keep 1.4 to 1.5 times as "
            "many bytes of activations for it. The rows without it keep as many as torchgpipe's U-Net, to the byte."
        )


def speed_sheet(table: Table, records: Sequence[Record]) -> Sheet:
    """Shows throughput, and the speed-up over the row that the table compares with.

    Args:
        table: whose rows are shown, published ones even where nothing is recorded.
        records: of its rows.
    """
    heads = ["row", "size", "parameters", "n x m", "batch", "GPUs", "samples/s", "speed-up"]
    heads += ["published", "published speed-up"]
    huang = any(row.huang for row in table.rows)
    heads += ["Huang et al."] * huang
    lines, bars = [], {}
    for row, record in _by_row(table, records):
        base = throughput_of(records, compared_with(table, row, record.row)) if record else None
        throughput = record.results["throughput"] if record else None
        speedup = ratio(throughput, base)
        lines.append(
            [
                *_cut(row, record),
                str(record.settings["batch"] if record else row.batch),
                _gpus(record),
                number(throughput, "{:.3f}", record),
                number(speedup, "{:.3f}x"),
                number(row.published.throughput, "{:.3f}"),
                number(row.published.speedup, "{:.3f}x"),
                *[row.huang.speedup if row.huang else "-"] * huang,
            ]
        )
        bars[record.row if record else row.name] = {"ours": speedup, "published": row.published.speedup}
    notes = [
        f"Speed-up over {table.reference}, of ours over the row of that name that is alike in all else; throughput is "
        "the mean over epochs, the first not counted.",
        *_missing(table, records),
        *_lengths(table, records),
        *(["Huang et al.: the speed-up in GPipe's paper, as torchgpipe's page repeats it."] * huang),
        *_in_turns(records),
        *_in_place(records),
    ]
    if table.reference != "baseline":
        notes.append(GROWING)
    return Sheet(table.title, heads, lines, notes + notes_of(records), f"speed-up over {table.reference}", bars)


def _lengths(table: Table, records: Sequence[Record]) -> Iterator[str]:
    """Says how long rows were measured, and how long the published ones."""
    if records:
        ran = ", ".join(f"{r.row} {r.settings['epochs']} x {r.settings['steps']}" for r in records)
        full = dict.fromkeys(f"{PUBLISHED.epochs} x {-(-table.dataset // r.settings['batch'])}" for r in records)
        yield (
            f"Epochs x steps: {ran}. Published: {', '.join(full)}, the last step of an epoch with what is left of the "
            "data set; `--published-epochs` measures as long."
        )


def _in_turns(records: Sequence[Record]) -> Iterator[str]:
    if rows := _sharing(records):
        yield (
            f"{rows}: all stages on one GPU, where the published had one each. They take turns on it, so "
            "the speed-up is that of the larger batch less what cutting costs, and no gain of pipelining."
        )


def _by_row(table: Table, records: Sequence[Record]) -> Iterator[tuple[Row, Record | None]]:
    """Pairs rows with their records, in the table's order; with None where a published row has none."""
    for row in table.rows:
        own = [record for record in records if table.row_of(record.row) is row]
        yield from ((row, record) for record in own)
        if not own and row.published != Published():
            yield row, None


def _missing(table: Table, records: Sequence[Record]) -> Iterator[str]:
    rows = [row.name for row, record in _by_row(table, records) if record is None]
    if rows:
        yield f"Published, and not recorded here: {', '.join(rows)}."


def timeline_sheet(table: Table, records: Sequence[Record]) -> Sheet:
    """Shows our rows beside the published four."""
    heads = ["row", "GPUs", "samples/s", "utilization", "memory reserved"]
    lines: list[list[str]] = []
    bars: dict[str, dict[str, float | None]] = {}
    for row, record in _by_row(table, records):
        figures = row.published
        name = record.row if record else f"{row.name}, published"
        throughput = record.results["throughput"] if record else figures.throughput
        utilization = record.results["utilization"] if record else figures.utilization
        memory = record.results["reserved_gib"] if record else figures.total
        lines.append(
            [
                name,
                _gpus(record) if record else str(row.n),
                number(throughput, "{:.3f}", record),
                number(utilization, "{:.0%}"),
                number(memory, "{:.1f} GiB"),
            ]
        )
        bars[name] = {"utilization": utilization}
    notes = [
        f"Of the published rows {NOT_RUN}.",
        "Published utilization is what `nvidia-smi` told when it was polled; ours is the share of two profiled steps "
        "in which a kernel ran, or on the CPU the share of the time in which a stage's thread had its core.",
        *_lengths(table, records),
        *_one_gpu(records),
        *_in_place(records),
    ]
    return Sheet(table.title, heads, lines, notes + notes_of(records), "utilization, share of time", bars)


def _cut(row: Row, record: Record | None) -> list[str]:
    """Writes what is trained and how it is cut, as it was measured or, if it was not, as it was published."""
    if record is None:
        size = ", ".join(map(str, row.sizes)) or "-"
        return [row.name, size, row.published.parameters or "-", f"{row.n} x {row.m}" if row.balance else "bare"]
    settings = record.settings
    shape = f"{len(settings['balance'])} x {settings['micro_batches']}" if settings["balance"] else "bare"
    size = ", ".join(map(str, settings["sizes"])) or settings["network"]
    return [record.row, size, number(record.results["parameters"], "{:,.0f}"), shape]
