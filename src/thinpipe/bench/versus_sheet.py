"""Sets pipelines beside data parallel training, and Epipe's figures beside both."""

from __future__ import annotations

from collections.abc import Sequence

from thinpipe.bench.documents import compared
from thinpipe.bench.record import Record
from thinpipe.bench.sheet import Sheet, notes_of
from thinpipe.bench.versus_variants import ALONE, DDP

CONCLUSIONS = (
    "What can be concluded from CPU cores: bytes and shares of the parameters, which are those of the cut anywhere; "
    "bytes over the speed of a link are the least time that the exchange takes on it. Ratios of times are those of "
    "this machine, for processes that have a core or two each and talk through its memory.",
    "What cannot: which way is faster on GPUs, or over a network. A core is slow and the way through memory is fast, "
    "so the exchange weighs less here than there, and it is what the two ways differ in. Processes share the "
    "bandwidth of one memory, which is kind to those that hold a part of the model. Gloo is not NCCL; its threads, "
    "codecs and the computation take turns on the same cores, where a GPU copies and computes at once. A batch this "
    "small is cut into pieces that would not keep a GPU busy.",
)

_HEADS = ["row", "variant", "s a batch", "rows/s", "speed-up", "over ddp", "MB a batch", "of ddp's", "most parameters"]
_HEADS += ["published"]


def versus_sheet(records: Sequence[Record]) -> Sheet:
    """Shows what each variant takes and sends."""
    lines = [line for record in records for line in _lines(record)]
    bars = {
        record.row: {name: record.results[f"{name}_speedup"] for name in record.samples if name != ALONE}
        for record in records
    }
    notes = [
        "Speed-up: over one process with the whole batch; over ddp: how many times as fast as data parallel. "
        f"{_rounds(records)}",
        "MB a batch: sent by all processes together. A pipeline's are counted by its meters, headers included; those "
        "of ddp are computed, 2 (k - 1) times the gradients' bytes, what a ring of k processes sends, and the buffers.",
        "Most parameters: the share that the process with the most of them holds, with its optimizer's state.",
        *dict.fromkeys(_about(record) for record in records),
        'Published: rows a second in Epipe\'s "speed and acc", on as many GPUs, tensors as they are; in brackets over '
        "its data parallel row: 64 or 256 images, 32 or 64 texts. By its code, data parallel training on two GPUs had "
        "64 images on each of them, and the pipeline 64 in all.",
        *CONCLUSIONS,
        *notes_of(records),
    ]
    return Sheet("Pipeline and data parallel", _HEADS, lines, notes, "speed-up over one process", bars)


def _rounds(records: Sequence[Record]) -> str:
    counts = [len(times) for record in records for times in record.samples.values()]
    if max(counts, default=0) <= 1:
        return "Each variant was timed in one round, so a ratio has the noise of two measurements."
    least = "" if min(counts) == max(counts) else f"{min(counts)} to "
    return f"Both are medians of ratios within {least}{max(counts)} rounds in which the variants took turns."


def _lines(record: Record) -> list[list[str]]:
    results, settings = record.results, record.settings
    base = results[f"{DDP}_megabytes"] or 0.0
    lines = []
    for name in record.samples:
        seconds, sent = results[f"{name}_seconds"] or 0.0, results[f"{name}_megabytes"] or 0.0
        manner = name.partition("+")[0]
        theirs = compared(settings["model"], name, settings["processes"])
        lines.append(
            [
                record.row,
                name,
                f"{seconds:.3f}",
                f"{settings['rows'] / seconds:.2f}",
                f"{results[f'{name}_speedup']:.2f}x",
                f"{results[f'{name}_over_ddp']:.2f}x",
                "-" if name == ALONE else f"{sent:.2f}",
                "-" if name == ALONE else f"{sent / base:.4f}",
                f"{settings['largest_share'].get(manner, 1.0):.0%}",
                "-" if theirs is None else f"{theirs[0].throughput:.2f}/s ({theirs[1]:.2f}x)",
            ]
        )
    return lines


def _about(record: Record) -> str:
    settings = record.settings
    of_what = f"{settings['size']} tokens" if settings["model"].startswith("roberta") else f"{settings['size']} pixels"
    cores = f"{settings['threads']} core{'s' * (settings['threads'] > 1)}"
    return (
        f"{settings['model']}: batches of {settings['rows']} rows of {of_what}, {settings['chunks']} micro-batches, "
        f"{settings['optimizer']}, {cores} a process, schedule {settings['schedule']}."
    )
