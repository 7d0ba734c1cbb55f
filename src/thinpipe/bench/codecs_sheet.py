"""The tables and pictures of ``bench codecs``: one tensor at a time, or several side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from thinpipe.bench.codecs import FAST, rows, split_errors, table_rows
from thinpipe.bench.codecs_methods import SORTED
from thinpipe.bench.record import Record
from thinpipe.bench.sheet import Sheet
from thinpipe.bench.svg import bar_chart, point_chart
from thinpipe.codecs import DEFAULT

NETWORKS = ("mobilenetv2", "minilm", "minilm128")
ACTIVATIONS = tuple(f"{network}-{cut}-activation" for network in NETWORKS for cut in ("cut1", "cut2"))
GRADIENTS = tuple(f"{network}-{cut}-gradient" for network in NETWORKS for cut in ("cut1", "cut2"))

_FORMS = {
    "ratio": "{:.4f}",
    "bits": "{:.2f}",
    "error": "{:.2e}",
    "cosine": "{:.5f}",
    "signs": "{:.1%}",
    "sums": "{:.2g}",
    "encode": "{:.2f}",
    "decode": "{:.2f}",
}
_HEADS = ["codec", "ratio", "bits", "error", "cosine", "signs", "sums", "encode GB/s", "decode GB/s"]
_FAMILIES = {
    "one grid a tensor": ("uniform", "sort", "kmeans", "fp16", "bf16"),
    "a scale a block": ("block", "had", "nf"),
    "waves": ("wave",),
    "fewer elements": ("topk", "power", "svd", "downsample"),
    "bitsandbytes": ("bitsandbytes",),
}
_MEANINGS = (
    "Ratio: bytes that travel over bytes of the float32 tensor, header included. Error: squares of what is wrong over "
    "squares of the tensor. Signs: the share of elements other than 0 that arrive with theirs. "
    "Sums: what is wrong in the sums of channels, over those sums; the gradient of a bias is such a sum."
)


def tensor_sheet(record: Record) -> Sheet:
    """Shows all codecs on one tensor."""
    lines = [[name, *_cells(values, _FORMS)] for name, values in table_rows(record).items()]
    shape = " x ".join(map(str, record.settings["shape"]))
    title = f"{record.row}, {shape}, {record.settings['zeros']:.0%} zeros"
    return Sheet(title, _HEADS, lines, [_MEANINGS, *record.notes], "error by bits an element")


def codecs_sheet(title: str, records: Sequence[Record]) -> Sheet:
    """Shows the error on several tensors, and the rest for all of them or for the largest."""
    found = [table_rows(record) for record in records]
    largest = max(records, key=lambda record: _elements(record))
    names = [name for name in found[0] if all(name in each for each in found)]
    heads = ["codec", "bits", *(f"error, {_short(record.row)}" for record in records)]
    heads += ["cosine, least", "signs, least", f"sums, {_short(largest.row)}", "encode GB/s", "decode GB/s"]
    lines = []
    for name in names:
        each = [values[name] for values in found]
        fast = table_rows(largest)[name]
        lines.append(
            [
                f"{name} (default)" if name == DEFAULT else name,
                _form("bits", _mean(each, "bits")),
                *(_form("error", values["error"]) for values in each),
                _form("cosine", _least(each, "cosine")),
                _form("signs", _least(each, "signs")),
                *_cells(fast, ("sums", "encode", "decode")),
            ]
        )
    shapes = "; ".join(f"{_short(r.row)} {' x '.join(map(str, r.settings['shape']))}" for r in records)
    notes = [
        _MEANINGS,
        f"Bits are the mean over the tensors ({shapes}). Speeds are those on {_short(largest.row)}, the largest; "
        f"medians of {largest.settings['repeats']} rounds with {largest.settings['threads']} threads.",
    ]
    return Sheet(title, heads, lines, notes, "error by bits an element, geometric mean over the tensors")


def codecs_picture(sheet: Sheet, records: Sequence[Record]) -> str:
    """Draws a point a codec: its error by the bits that an element takes."""
    found = [table_rows(record) for record in records]
    points: dict[str, dict[str, tuple[float, float]]] = {family: {} for family in _FAMILIES}
    for name in found[0]:
        each = [values[name] for values in found if name in values]
        errors = [values["error"] or 0.0 for values in each]
        bits = _mean(each, "bits")
        family = next((key for key, heads in _FAMILIES.items() if name.startswith(heads)), None)
        if family is not None and bits and all(error > 0 for error in errors):
            points[family][name] = (bits, statistics.geometric_mean(errors))
    drawn = {family: named for family, named in points.items() if named}
    return point_chart(sheet.title, sheet.measure, "bits an element", drawn, joined=False)


def splits_sheet(records: Sequence[Record]) -> Sheet:
    """Shows the error of sort quantization by the bits that number the bucket, at the same total."""
    errors = [split_errors(record) for record in records]
    specs = [spec for spec in errors[0] if all(spec in each for each in errors)]
    least = [_least_errors(each) for each in errors]
    lines = []
    for spec in specs:
        total, split = _split(spec)
        cells = [_form("error", each[spec]) for each in errors]
        marked = [f"{cell} *" if spec in best else cell for cell, best in zip(cells, least, strict=True)]
        lines.append([str(total), str(split), spec, *marked])
    notes = [
        "An asterisk marks the least error of each total. sort:B gives the bucket a quarter of its bits.",
        "Each bucket costs 8 bytes of a packet of float32, whatever the tensor's size.",
    ]
    heads = ["bits", "S", "codec", *(record.row.replace("-", " ") for record in records)]
    measure = "error by bits of the bucket, geometric mean over the tensors"
    return Sheet("Sort quantization, bits of the bucket at a fixed total", heads, lines, notes, measure)


def splits_picture(sheet: Sheet, records: Sequence[Record]) -> str:
    """Draws a line for each total."""
    errors = [split_errors(record) for record in records]
    lines: dict[str, dict[str, tuple[float, float]]] = {}
    for spec in errors[0]:
        each = [error[spec] or 0.0 for error in errors if spec in error]
        total, split = _split(spec)
        if all(error > 0 for error in each):
            lines.setdefault(f"{total} bits", {})[spec] = (split, statistics.geometric_mean(each))
    return point_chart(sheet.title, sheet.measure, "S, bits of the bucket", lines, joined=True)


def speed_sheet(records: Sequence[Record]) -> Sheet:
    """Shows how fast codecs are on the tensor that everybody can make."""
    record = records[0]
    heads = ["codec", "encode GB/s", "decode GB/s"]
    lines = [[_spoken(name), *_cells(values, ("encode", "decode"))] for name, values in rows(record).items()]
    speedup = record.results["sort_encode_speedup"]
    shape = " x ".join(map(str, record.settings["shape"]))
    notes = [
        f"An encoder of the same that calls torch.sort takes {speedup:.1f} times as long as that of sort:6+2.",
        f"float32 {shape}, Gaussian; GB of the tensor a second, medians of {record.settings['repeats']} rounds in "
        f"turns, {record.settings['threads']} threads. {', '.join(FAST)} are to encode at 1 GB/s or more.",
    ]
    bars = {
        _spoken(name): {"encode": values["encode"], "decode": values["decode"]} for name, values in rows(record).items()
    }
    return Sheet("Codecs, speed", heads, lines, notes, "GB of float32 a second", bars)


def speed_picture(sheet: Sheet, _: Sequence[Record]) -> str:
    """Draws the speeds as bars."""
    return bar_chart(sheet.title, sheet.measure, sheet.bars)


def _spoken(name: str) -> str:
    return "sort:6+2 by torch.sort" if name == SORTED else name


def _split(spec: str) -> tuple[int, int]:
    places, split = map(int, spec.removeprefix("sort:").split("+"))
    return places + split, split


def _least_errors(errors: dict[str, float | None]) -> set[str]:
    totals = {_split(spec)[0] for spec in errors}
    known = {spec: error for spec, error in errors.items() if error is not None}
    groups = [[spec for spec in known if _split(spec)[0] == total] for total in totals]
    return {min(group, key=known.__getitem__) for group in groups if group}


def _short(row: str) -> str:
    return row.removesuffix("-activation").removesuffix("-gradient").replace("-", " ")


def _elements(record: Record) -> int:
    count = 1
    for size in record.settings["shape"]:
        count *= int(size)
    return count


def _known(each: Sequence[dict[str, float | None]], measure: str) -> list[float]:
    return [value for values in each if (value := values[measure]) is not None]


def _mean(each: Sequence[dict[str, float | None]], measure: str) -> float | None:
    return _over(statistics.mean, _known(each, measure))


def _least(each: Sequence[dict[str, float | None]], measure: str) -> float | None:
    return _over(min, _known(each, measure))


def _over(summary: Callable[[list[float]], float], values: list[float]) -> float | None:
    return summary(values) if values else None


def _form(measure: str, value: float | None) -> str:
    if value == 0 and measure == "error":
        return "0"
    return "-" if value is None else _FORMS[measure].format(value)


def _cells(values: dict[str, float | None], measures: Sequence[str] | dict[str, str]) -> list[str]:
    return [_form(measure, values[measure]) for measure in measures]
