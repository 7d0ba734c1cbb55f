"""Sets what was measured of two machines beside Epipe's figures, as tables and as its two charts."""

from __future__ import annotations

from collections.abc import Sequence

from thinpipe.bench.record import Record
from thinpipe.bench.sheet import Sheet, notes_of, ratio
from thinpipe.bench.svg import bar_chart
from thinpipe.reproduce.two_machines.documents import PRINTED
from thinpipe.reproduce.two_machines.figures import MEGABYTE

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


def documents_sheet(records: Sequence[Record]) -> Sheet:
    """Shows Epipe's columns, its figures in brackets."""
    heads = ["link", "cut", "codec", "chunks", *(head for head, _ in _COLUMNS.values())]
    lines = [[*_row(record), *(_both(record, *column) for column in _columns())] for record in records]
    notes = [
        f"{_model(records)}; Epipe's figures in brackets, of a CPU and a GTX 1080 in one local network, with "
        "CIFAR-10 and pretrained weights, where ours are made-up images and random ones: times cannot be compared.",
        "MB is 2**20 bytes and times are seconds a batch, means over batches after one that warms up. Ratio: bytes on "
        "the wire, heads and words included, over those of the tensors; theirs is nominal.",
        "Average, as Epipe's report defines it: bytes of one way over the computation time, and nothing that crossed a "
        f"wire.{_rough(records)} Peaks: what the client handed to its socket, which the system's buffers may take "
        "faster than the link does, and what came out of the server's, in the busiest 100 ms.",
        "Computation: measured in the same two processes with the same schedule and nothing on the wire but one number "
        "a row in each tensor's place.",
        *notes_of(records),
    ]
    return Sheet(TITLE, heads, lines, notes, "MB/s sent in the client's busiest 100 ms", bars(records, _PEAK))


def _rough(records: Sequence[Record]) -> str:
    """Says of how many rows the computation time cannot be right: a batch was over in less."""
    wrong = sum((each.results["total_s"] or 0.0) < (each.results["computation_s"] or 0.0) for each in records)
    if not wrong:
        return ""
    return (
        f" The computation was timed apart from the rows, over a few batches for each link and number of chunks, and "
        f"came out longer than the whole batch of {wrong} rows: it and the average are rough."
    )


def costs_sheet(records: Sequence[Record]) -> Sheet:
    """Shows what Epipe's columns leave out."""
    heads = ["link", "cut", "codec", "chunks", "none's total over this", "MB up", "MB down"]
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
    """Arranges a result as Epipe's charts do: by codec, a bar for each number of micro-batches; theirs last."""
    found: dict[str, dict[str, float | None]] = {}
    for record in records:
        cut = "" if record.settings["cut"] == "documents" else ", pooled"
        label = f"{record.settings['codec']}, {record.settings['bandwidth']}{cut}"
        found.setdefault(label, {})[_chunks(record.settings["chunks"])] = record.results[name]
    if any(record.published for record in records):
        for row in PRINTED:
            found.setdefault(f"{row.codec}, published", {})[_chunks(row.chunks)] = row.figures()[name]
    return found


def over_none(records: Sequence[Record], record: Record) -> float | None:
    """Tells how many times as long a batch takes without codecs, all else being equal."""
    same = ("bandwidth", "cut", "chunks", "wire")
    for other in records:
        if other.settings["codec"] == "none" and all(other.settings[k] == record.settings[k] for k in same):
            return ratio(other.results["total_s"], record.results["total_s"])
    return None


def _chunks(m: int) -> str:
    return "1 chunk" if m == 1 else f"{m} chunks"


def _row(record: Record) -> list[str]:
    settings = record.settings
    return [settings["bandwidth"], settings["cut"], settings["codec"], str(settings["chunks"])]


def _columns() -> list[tuple[str, str]]:
    return [(name, form) for name, (_, form) in _COLUMNS.items()]


def _both(record: Record, name: str, form: str) -> str:
    theirs = record.published.get(name)
    return _text(record.results[name], form) + ("" if theirs is None else f" ({_text(theirs, form)})")


def _text(value: float | None, form: str, unit: float = 1.0) -> str:
    return "-" if value is None else form.format(value / unit)


def _model(records: Sequence[Record]) -> str:
    models = (
        f"{'A small model' if each.settings['tiny'] else 'MobileNetV2'} at {each.settings['pixels']} pixels, batches "
        f"of {each.settings['batch']}, schedule {each.settings['schedule']}"
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
