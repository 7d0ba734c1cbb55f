"""All tables at a glance: what each codec has more than ``none``, or less, on each data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from thinpipe.bench.page import line
from thinpipe.reproduce.page.schedule import epochs, samples
from thinpipe.reproduce.page.table import difference
from thinpipe.reproduce.training.rows import Shown
from thinpipe.reproduce.training.sheet import figure
from thinpipe.reproduce.training.table import NONE, Table

_SHARED = 2
"""A codec that fewer data sets have been trained with is in its own table alone."""


class _Cell(NamedTuple):
    """A row, and those of its table, of which one has no codec."""

    shown: Shown
    beside: Sequence[Shown]


def glance(tables: Sequence[tuple[Table, list[Shown]]]) -> Iterator[str]:
    """Writes a table with a line for each codec and a column for each data set; nothing where they share no codec.

    Args:
        tables: with the rows that are recorded. Of a row that two of them have, the first counts.
    """
    columns: dict[str, dict[str, _Cell]] = {}
    for _, rows in tables:
        for each in rows:
            if _is_plain(each):
                columns.setdefault(each.row.work.label, {}).setdefault(each.row.codec, _Cell(each, rows))
    codecs = list(dict.fromkeys(codec for column in columns.values() for codec in column))
    shared = [codec for codec in codecs if sum(codec in column for column in columns.values()) >= _SHARED]
    kinds = list(dict.fromkeys(map(_kind, codecs)))
    shared.sort(key=lambda codec: (kinds.index(_kind(codec)), -_ratio(codec, columns)))
    used = {label: column for label, column in columns.items() if any(codec in column for codec in shared)}
    if not shared:
        return
    heads = ["codec, both ways", "of float32", *used]
    yield "## At a glance\n"
    yield "Difference to the row without a codec, in points of accuracy; of CoLA, in hundredths of the correlation.\n"
    yield line(heads)
    yield line(["---"] * len(heads))
    yield line(["trained for", "", *(epochs([cell.shown for cell in column.values()]) for column in used.values())])
    yield line(["trained with", "", *(samples([cell.shown for cell in column.values()]) for column in used.values())])
    for codec in shared:
        cells = [difference(*column[codec]) if codec in column else "" for column in used.values()]
        yield line([f"`{codec}`", figure(_ratio(codec, columns), "{:.4f}"), *cells])
    yield ""
    yield (
        "- Of float32: bytes that cross the cuts, headers included, over those of the tensors in float32, on the "
        "leftmost data set that the codec was trained on."
    )
    yield from _on_another_device(used)
    yield "- Mean and standard deviation over seeds; both rows were trained for as long."
    yield "- Trained for, trained with: epochs and samples, of those that Epipe had.\n"


def _on_another_device(columns: Mapping[str, Mapping[str, _Cell]]) -> Iterator[str]:
    """Says of which cells the row without a codec was trained on another device."""
    for label, column in columns.items():
        for codec, (shown, beside) in column.items():
            base = next((each for each in beside if each.row.codec == NONE and each.row.learned is None), shown)
            ours, bare = (sorted({str(record.settings["device"]) for record in each.records}) for each in (shown, base))
            if ours != bare:
                there = f"the row without a codec on {', '.join(bare)}"
                yield f"- {label}: `{codec}` was trained on {', '.join(ours)}, {there}."


def _is_plain(each: Shown) -> bool:
    """Tells whether a row is recorded, and has one codec for everything and the cut `documents`."""
    row = each.row
    plain = row.codec != NONE and row.learned is None and row.gradients is None
    return plain and row.elsewhere is None and bool(each.records)


def _kind(codec: str) -> str:
    return codec.partition(":")[0]


def _ratio(codec: str, columns: Mapping[str, Mapping[str, _Cell]]) -> float:
    """Finds what is left of the bytes, where the codec was trained with first."""
    return next(column[codec].shown.mean("float32_ratio") or 0.0 for column in columns.values() if codec in column)
