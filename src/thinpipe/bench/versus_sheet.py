"""Sets pipelines beside data parallel training, and Epipe's figures beside both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from thinpipe.bench.documents import COMPARED, DDP, Compared, compared
from thinpipe.bench.record import Record
from thinpipe.bench.shapes import ROBERTA
from thinpipe.bench.sheet import Sheet, notes_of
from thinpipe.bench.versus_plan import ALONE, PIPELINE, Variant

CONCLUSIONS = (
    "What can be concluded from CPU cores: bytes and shares of the parameters, which are those of the cut anywhere; "
    "bytes over the speed of a link are the least time that the exchange takes on it. Ratios of times are those of "
    "this machine, for processes that have a core or two each and talk through its memory.",
    "What cannot: which way is faster on GPUs, or over a network. A core is slow and the way through memory is fast, "
    "so the exchange weighs less here than there, and it is what the two ways differ in. Processes share the "
    "bandwidth of one memory, which is kind to those that hold a part of the model. Gloo is not NCCL; its threads, "
    "codecs and the computation take turns on the same cores, where a GPU copies and computes at once.",
)
_COLUMNS = (
    "Over ddp-2: throughput over that of data parallel training by two processes, which is Epipe's speed-up. "
    "Epipe's program of CIFAR-10 takes 64 images on each GPU, so the published 0.607 compares a batch of 64 with one "
    "of 128, and so does ours. Published speed-ups are computed of published throughputs. Equal batch: throughput of a "
    "pipeline over data parallel training by as many processes with the same batch; Epipe has no such row of 64 "
    "images. Over one: over one process alone.",
    'Published: Epipe\'s main page and its report "speed and acc", samples a second on as many GPUs, tensors as they '
    "are. Some RoBERTa rows are in two of its tables with two figures. Its steps include the wait for a data loader; "
    "ours repeat one batch that lies in memory, so no time of a step is set beside one of theirs.",
    "Epipe's report finds RoBERTa to suit a pipeline better than MobileNetV2, by 0.81 and 0.61 over two data parallel "
    "GPUs, whose batches were not alike. On four, with equal batches, its figures are 1.11 and 0.64: it is right.",
    "MB a batch: sent by all processes together. A pipeline's are counted by its meters, headers included; those of "
    "ddp are computed, 2 (k - 1) times the gradients' bytes, what a ring of k processes sends, and the buffers. "
    "Torchgpipe's stages share a process. Of ddp's: over data parallel training by as many processes. Most "
    "parameters: the share that the process with the most of them holds, with its optimizer's state.",
)
_SAME = (
    "As in Epipe's programs, unless a row says something else: in `client` the first process has MobileNetV2's "
    "`features[0]` and head, or RoBERTa's embeddings, layers 0 and 11 and head; where there are four, the others have "
    '`features[1:3]`, `[3:7]` and `[7:]`, or 4, 4 and 2 layers. In `halves` ("separated averagely") the first process '
    "has features 0 to 2, 17, 18 and the head, the other one 3 to 16. Pipelines take all micro-batches forward before "
    "any backward (`gpipe`), and have no momentum; data parallel training and torchgpipe have 0.9. Each process's "
    "BatchNorm sees its own rows alone.",
    "Kept different: processes on CPU cores stand for GPUs. Weights are random, which changes no time. RoBERTa's cut "
    "of two stages is after layer 0, as Epipe's report describes it; the program that is published with it cuts that "
    "layer after its attention. Torchgpipe runs as it is installed, and recomputes all micro-batches but the last; on "
    "CPUs one thread runs its stages in turn, with the cores of all processes.",
)
_EARLIER = (
    "These rows were measured before the command had Epipe's settings: one batch for all ways, schedule 1f1b, "
    "a momentum of 0.9 for pipelines, too, and models cut by measured time. They have no data parallel training of "
    "Epipe's batch that a speed-up could be over, and no published figures beside them for that."
)
_HEADS = ["row", "experiment", "variant", "batch", "rows/s", "over ddp-2", "published", "equal batch"]
_HEADS += ["equal batch, published", "over one", "MB a batch", "of ddp's", "most parameters", "rows/s, published"]
_NOT_RUN = "not run"


@dataclass(frozen=True)
class _Line:
    """A variant of a record.

    Args:
        record: of the row.
        name: of the variant.
        variant: what it was.
    """

    record: Record
    name: str
    variant: Variant

    def result(self, what: str) -> float | None:
        """Finds a figure."""
        return self.record.results.get(f"{self.name}_{what}")

    def shows(self, row: Compared) -> bool:
        """Tells whether it is a published row, its batch divided by what all batches were."""
        settings, own = self.record.settings, self.variant
        if own.published_way != row.way or settings["model"] != row.model or row.batch % settings["divided"]:
            return False
        ours = (own.processes, own.rows, own.chunks)
        # A base in a row of more processes is not theirs: it is measured by itself, in a row of its own.
        alone = own.way != DDP or settings["processes"] == own.processes
        return alone and ours == (row.devices, row.batch // settings["divided"], row.chunks)


def versus_sheet(records: Sequence[Record], rows: Sequence[Compared] | None = None) -> Sheet:
    """Shows what each variant takes and sends, Epipe's rows first.

    Args:
        records: of any rows.
        rows: Epipe's that are shown, even if they were not run (default: those of the same models on as many
            processes).
    """
    if rows is None:
        asked = dict.fromkeys((record.settings["model"], record.settings["processes"]) for record in records)
        rows = [row for model, processes in asked for row in compared(model, processes)]
    ours = [_Line(record, name, variant) for record in records for name, variant in _variants(record).items()]
    lines: list[list[str]] = []
    for row in rows:
        found = [each for each in ours if each.shows(row)]
        lines += [_shown(each, row) for each in found] or [_unrun(row)]
    lines += [_shown(each) for each in ours if not any(each.shows(row) for row in rows)]
    notes = [*_COLUMNS, *_SAME, *_measured(records), *(CONCLUSIONS if records else ()), *notes_of(records)]
    bars = {record.row: _bars(record, "over_base") for record in records}
    return Sheet("Pipeline and data parallel", _HEADS, lines, notes, "throughput over data parallel on two", bars)


def every_row(records: Sequence[Record]) -> Sheet:
    """Shows all of Epipe's rows, those that were not run among them."""
    return versus_sheet(records, COMPARED)


def earlier_sheet(records: Sequence[Record]) -> Sheet:
    """Shows rows that were measured with earlier settings."""
    heads = ["row", "variant", "batch", "rows/s", "equal batch", "over one", "MB a batch", "most parameters"]
    lines, bars = [], {}
    for record in records:
        results, settings = record.results, record.settings
        bars[record.row] = {name: results[f"{name}_speedup"] for name in record.samples if name != ALONE}
        for name in record.samples:
            cut = name.partition("+")[0]
            lines.append(
                [
                    record.row,
                    name,
                    f"{settings['rows']}"
                    if name in (ALONE, DDP)
                    else f"{settings['rows']} ({settings['chunks']} chunks)",
                    f"{settings['rows'] / (results[f'{name}_seconds'] or 1):.2f}",
                    "-" if name in (ALONE, DDP) else _times(results[f"{name}_over_ddp"]),
                    _times(results[f"{name}_speedup"]),
                    _megabytes(None if name == ALONE else results[f"{name}_megabytes"]),
                    f"{settings['largest_share'].get(cut, 1.0):.0%}",
                ]
            )
    notes = [_EARLIER, *_rounds(records), *_about(records), *CONCLUSIONS, *notes_of(records)]
    title = "Pipeline and data parallel, earlier settings"
    return Sheet(title, heads, lines, notes, "speed-up over one process", bars)


def _variants(record: Record) -> dict[str, Variant]:
    return {name: Variant(**entries) for name, entries in record.settings["variants"].items()}


def _shown(each: _Line, row: Compared | None = None) -> list[str]:
    settings, variant = each.record.settings, each.variant
    sends = variant.way in (DDP, PIPELINE)
    sent = each.result("megabytes") if sends else None
    share = settings["largest_share"].get(variant.cut, 1.0) if sends else 1.0
    return [
        each.record.row,
        "-" if row is None else row.name,
        each.name,
        _batch(variant.rows, variant.chunks),
        f"{each.result('throughput') or 0:.2f}",
        _times(each.result("over_base")),
        *_published(row)[:1],
        _times(each.result("over_equal_batch")),
        *_published(row)[1:2],
        _times(each.result("over_one")),
        _megabytes(sent),
        _of_ddps(each, sent),
        f"{share:.0%}",
        *_published(row)[2:],
    ]


def _unrun(row: Compared) -> list[str]:
    speedup, equal, throughput = _published(row)
    name = f"{row.model}-{row.devices}"
    began = [name, row.name, _NOT_RUN, _batch(row.batch, row.chunks), "-", "-", speedup, "-", equal]
    return [*began, "-", "-", "-", "-", throughput]


def _published(row: Compared | None) -> tuple[str, str, str]:
    """Writes Epipe's speed-up, what it is at an equal batch, and throughput."""
    if row is None:
        return "-", "-", "-"
    again = "" if row.again in (None, row.throughput) else f" and {row.again:.2f}"
    return _times(row.over_base), _times(row.at_equal_batch), f"{row.throughput:.2f}{again}"


def _of_ddps(each: _Line, sent: float | None) -> str:
    """Writes bytes over those of data parallel training by as many processes, whose batch makes no difference."""
    for other in _variants(each.record).values():
        if other.way == DDP and other.processes == each.variant.processes and sent is not None:
            return f"{sent / (each.record.results[f'{other.name}_megabytes'] or 1):.4f}"
    return "-"


def _bars(record: Record, what: str) -> dict[str, float | None]:
    return {name: record.results.get(f"{name}_{what}") for name in record.samples}


def _measured(records: Sequence[Record]) -> Iterator[str]:
    yield from _rounds(records)
    yield from _about(records)
    divided = dict.fromkeys(record.settings["divided"] for record in records if record.settings["divided"] > 1)
    for by in divided:
        rows = ", ".join(record.row for record in records if record.settings["divided"] == by)
        yield f"{rows}: all batches are Epipe's divided by {by}, for a CPU; micro-batches are as many as theirs."


def _rounds(records: Sequence[Record]) -> Iterator[str]:
    counts = [len(times) for record in records for times in record.samples.values()]
    if not counts:
        return
    if max(counts) <= 1:
        yield "Each variant was timed in one round, so a ratio has the noise of two measurements."
        return
    least = "" if min(counts) == max(counts) else f"{min(counts)} to "
    yield f"Ratios are medians of those within {least}{max(counts)} rounds in which the variants took turns."


def _about(records: Sequence[Record]) -> Iterator[str]:
    yield from dict.fromkeys(_settings(record.settings) for record in records)


def _settings(settings: dict[str, Any]) -> str:
    of_what = f"{settings['size']} tokens" if settings["model"] == ROBERTA else f"{settings['size']} pixels"
    cores = f"{settings['threads']} core{'s' * (settings['threads'] > 1)} a process"
    place = cores if settings.get("device", "cpu") == "cpu" else "GPUs"
    batch = f"batches of {settings['rows']}, {settings['chunks']} micro-batches, " if "rows" in settings else ""
    synced = ", BatchNorm of all data parallel processes together" if settings.get("synced") else ""
    return (
        f"{settings['model']}: {batch}rows of {of_what}, {settings['optimizer']}{_momenta(settings)}, {place}, "
        f"schedule {settings['schedule']}{synced}."
    )


def _momenta(settings: dict[str, Any]) -> str:
    if settings["optimizer"] != "sgd" or "pipeline_momentum" not in settings:
        return ""
    return f" with a momentum of {settings['pipeline_momentum']:g} in pipelines, else {settings['ddp_momentum']:g}"


def _batch(rows: int, chunks: int) -> str:
    return f"{rows}" if chunks == 1 else f"{rows} ({chunks} chunks)"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _megabytes(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
