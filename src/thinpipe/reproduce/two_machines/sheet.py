"""Sets what was measured of two machines beside Epipe's figures, as tables and as its two charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from thinpipe.bench.record import Record
from thinpipe.bench.sheet import Sheet, notes_of, ratio
from thinpipe.bench.svg import bar_chart
from thinpipe.reproduce.two_machines.documents import (
    CHUNKS,
    CONV,
    CUT,
    IMPOSSIBLE,
    MISPRINTED,
    NONE,
    POWER,
    PRINTED,
)
from thinpipe.reproduce.two_machines.figures import MEGABYTE
from thinpipe.reproduce.two_machines.row import MADE_UP, method

TITLE = "Two machines"
COSTS_TITLE = "Two machines, where the time goes"

_COLUMNS = {
    "ratio": ("ratio", "{:.3f}"),
    "average_mb_s": ("average", "{:.1f}"),
    "peak_client_mb_s": ("peak, client", "{:.0f}"),
    "peak_server_mb_s": ("peak, server", "{:.0f}"),
    "computation_s": ("computation", "{:.3f}"),
    "total_s": ("total", "{:.3f}"),
    "throughput": ("samples/s", "{:.1f}"),
}
_COSTS = {
    "total_s": ("total", "{:.3f}"),
    "average_wall_mb_s": ("average, wall", "{:.1f}"),
    "encode_s": ("encode", "{:.3f}"),
    "decode_s": ("decode", "{:.3f}"),
    "stalled_s": ("stall", "{:.3f}"),
    "server_encode_s": ("server's encode", "{:.3f}"),
    "server_decode_s": ("decode", "{:.3f}"),
    "server_stalled_s": ("stall", "{:.3f}"),
}


def published_sheet(records: Sequence[Record]) -> Sheet:
    """Shows Epipe's columns, its figures in brackets."""
    heads = ["link", "cut", "method", "chunks", *(head for head, _ in _COLUMNS.values())]
    lines = [[*_row(record), *(_both(record, *column) for column in _columns())] for record in records]
    notes = [
        f"{_model(records)}; Epipe's figures in brackets, of a CPU and a GTX 1080 in one local network: times cannot "
        "be compared.",
        "Kept different from Epipe: client and server are processes of one host, joined by an emulated link, which is "
        "the loopback with both ends held back or a wire that the kernel slows; images are made up and weights random "
        "where a row's settings do not say `cifar10`, for a batch takes as long with any.",
        "MB is 2**20 bytes and times are seconds a batch: total and computation are the median batch, others means. "
        "Ratio: bytes on the wire, heads and words included, over those of the tensors in float32 before any "
        "bottleneck; theirs is nominal.",
        "Average is the bytes of one way over the computation time: the rate that a link would need so that nobody "
        f"ever waited for it. No link carried that, and nothing measured it.{_wrong(records)}",
        "Peaks: what the client handed to its socket, which the system's buffers may take faster than the link does, "
        "and what came out of the server's, in the busiest 100 ms.",
        "Computation: of batches in the same two processes with the same schedule and nothing on the wire but one "
        "number a row in each tensor's place; one measurement for all codecs and links of a number of chunks, and one "
        "for each bottleneck, which computes, too.",
        *_published_notes(records),
        *_settings_notes(records),
        *notes_of(records),
    ]
    return Sheet(TITLE, heads, lines, notes, "MB/s sent in the client's busiest 100 ms", bars(records, _PEAK))


def _wrong(records: Sequence[Record]) -> str:
    """Says of how many rows the computation time cannot be right: a batch was over in less."""
    wrong = sum((each.results["total_s"] or 0.0) < (each.results["computation_s"] or 0.0) for each in records)
    if not wrong:
        return ""
    return f" The computation of {wrong} rows was mismeasured: it is longer than the whole batch. Do not use it."


def _published_notes(records: Sequence[Record]) -> Iterator[str]:
    """Says what is odd about Epipe's own figures."""
    theirs = [record.settings for record in records if record.published]
    if any(each["codec"] == POWER and each["chunks"] == CHUNKS[-1] for each in theirs):
        yield MISPRINTED
    if any(_bottleneck(each) == CONV["0.097"] and each["chunks"] == CHUNKS[0] for each in theirs):
        yield IMPOSSIBLE


def _settings_notes(records: Sequence[Record]) -> Iterator[str]:
    """Says with what step rows were trained, and which were measured before they followed the report."""
    if any("lr" in record.settings for record in records):
        yield (
            "SGD at 0.005 for each micro-batch with momentum 0.1 and no weight decay, as Epipe's report says; the code "
            "that made its figures has no momentum."
        )
    before = sum("lr" not in record.settings for record in records)
    if before:
        yield (
            f"{before} rows are older: SGD at 0.01 with momentum 0.9 and weight decay 0.0001, means of 2 or 3 batches "
            "after one, in processes that gave the memory of a batch back to the system and waited for it anew. Their "
            "computation is longer for that, by more in some rows than in others."
        )
    if any(str(record.settings["server_device"]).startswith("cuda") for record in records):
        yield (
            "A server with a recent GPU takes nearly as long for a micro-batch of 8 rows as for one of 64, as it waits "
            "for launches: its computation grows with the number of chunks, where Epipe's fell."
        )


def costs_sheet(records: Sequence[Record]) -> Sheet:
    """Shows what Epipe's columns leave out."""
    heads = ["link", "cut", "method", "chunks", "none's total over this", "MB up", "MB down"]
    heads += [head for head, _ in _COSTS.values()]
    lines = [
        [
            *_row(record),
            _text(over_none(records, record), "{:.2f}x"),
            *(_text(record.results[name], "{:.2f}", MEGABYTE) for name in ("sent_bytes", "received_bytes")),
            *(_text(record.results[name], form) for name, (_, form) in _COSTS.items()),
        ]
        for record in records
    ]
    notes = [
        "Times are seconds a batch and may overlap: a half packs one tensor while it computes the next. Stall: a half "
        "had nothing to do but to wait. Average, wall: bytes of one way over the total time, in MB of 2**20 bytes.",
        *_about_links(records),
    ]
    if any(str(record.settings["server_device"]).startswith("cuda") for record in records):
        notes.append("The server's encode on a GPU begins when its packer does, and has the wait for the tensor in it.")
    return Sheet(COSTS_TITLE, heads, lines, notes, "seconds a batch", bars(records, "total_s"))


_PEAK = "peak_client_mb_s"


def average_picture(_: Sheet, records: Sequence[Record]) -> str:
    """Draws Epipe's second chart."""
    return bar_chart(TITLE, "average MB/s over the computation time", bars(records, "average_mb_s"))


def bars(records: Sequence[Record], name: str) -> dict[str, dict[str, float | None]]:
    """Arranges a result as Epipe's charts do: by method, a bar for each number of micro-batches; theirs last."""
    found: dict[str, dict[str, float | None]] = {}
    for record in records:
        cut = "" if record.settings["cut"] == CUT else ", pooled"
        label = f"{_method(record.settings)}, {record.settings['bandwidth']}{cut}"
        found.setdefault(label, {})[_chunks(record.settings["chunks"])] = record.results[name]
    if any(record.published for record in records):
        for row in PRINTED:
            found.setdefault(f"{method(row.codec, row.bottleneck)}, published", {})[_chunks(row.chunks)] = (
                row.figures()[name]
            )
    return found


def over_none(records: Sequence[Record], record: Record) -> float | None:
    """Tells how many times as long a batch takes with nothing made small, all else being equal."""
    same = ("bandwidth", "cut", "chunks", "wire")
    for other in records:
        if _method(other.settings) == NONE and all(other.settings[k] == record.settings[k] for k in same):
            return ratio(other.results["total_s"], record.results["total_s"])
    return None


def _chunks(m: int) -> str:
    return "1 chunk" if m == 1 else f"{m} chunks"


def _bottleneck(settings: Mapping[str, Any]) -> str:
    return str(settings.get("bottleneck", NONE))  # which older records lack


def _method(settings: Mapping[str, Any]) -> str:
    return method(str(settings["codec"]), _bottleneck(settings))


def _row(record: Record) -> list[str]:
    settings = record.settings
    return [settings["bandwidth"], settings["cut"], _method(settings), str(settings["chunks"])]


def _columns() -> list[tuple[str, str]]:
    return [(name, form) for name, (_, form) in _COLUMNS.items()]


def _both(record: Record, name: str, form: str) -> str:
    theirs = record.published.get(name)
    return _text(record.results[name], form) + ("" if theirs is None else f" ({_text(theirs, form)})")


def _text(value: float | None, form: str, unit: float = 1.0) -> str:
    return "-" if value is None else form.format(value / unit)


def _model(records: Sequence[Record]) -> str:
    models = (
        f"{'A small model' if each.settings['tiny'] else 'MobileNetV2'} at {each.settings['pixels']} pixels, "
        f"{each.settings.get('images', MADE_UP)} images, batches of {each.settings['batch']}, schedule "
        f"{each.settings['schedule']}"
        for each in records
    )
    return "; ".join(dict.fromkeys(models))


def _about_links(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(map(_about_link, records)))


def _about_link(record: Record) -> str:
    settings = record.settings
    wire = {
        "namespaces": "two network namespaces, slowed down by the kernel, whose token bucket lets 256 kB of an idle "
        "wire through at once",
        "emulated": "the loopback; both ends hold back what they send",
    }.get(settings["wire"], "a network to a server that was there")
    return f"The link: {wire}{', encrypted' if settings['encrypted'] else ''}. The server: {settings['server_device']}."
