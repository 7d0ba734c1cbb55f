"""All tables at a glance: what each codec has more than ``none``, or less, on each data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thinpipe.bench.page import line
from thinpipe.reproduce.page.schedule import epochs
from thinpipe.reproduce.page.table import difference
from thinpipe.reproduce.training.rows import Shown
from thinpipe.reproduce.training.sheet import figure
from thinpipe.reproduce.training.table import DOCUMENTS, NONE, Table

_SHARED = 2
"""A codec that fewer data sets have been trained with is in its own table alone."""


def glance(tables: Sequence[tuple[Table, list[Shown]]]) -> Iterator[str]:
    """Writes a table with a line for each codec and a column for each data set; nothing where they share no codec.

    Args:
        tables: with the rows that are recorded. Of a data set that two of them have, the first counts.
    """
    sets: dict[str, list[Shown]] = {}
    for _, rows in tables:
        for each in rows:
            sets.setdefault(each.row.work.label, rows)
    columns = {label: _by_codec(label, rows) for label, rows in sets.items()}
    codecs = list(dict.fromkeys(codec for column in columns.values() for codec in column))
    shared = [codec for codec in codecs if sum(codec in column for column in columns.values()) >= _SHARED]
    used = {label: column for label, column in columns.items() if any(codec in column for codec in shared)}
    if not shared:
        return
    heads = ["codec, both ways", "of float32", *used]
    yield "## At a glance\n"
    yield "What rows have more than `none`, or less, in points of accuracy, or hundredths of Matthews' correlation.\n"
    yield line(heads)
    yield line(["---"] * len(heads))
    yield line(["trained for", "", *(epochs(list(column.values())) for column in used.values())])
    for codec in shared:
        found = [column[codec] for column in used.values() if codec in column]
        cells = [difference(column[codec], sets[label]) if codec in column else "" for label, column in used.items()]
        yield line([f"`{codec}`", figure(found[0].mean("float32_ratio"), "{:.4f}"), *cells])
    yield ""
    yield "- Bytes are those of the first data set that a codec has a figure of. Each table below has its own."
    yield "- Trained for so many epochs of those that the documents trained for.\n"


def _by_codec(label: str, rows: Sequence[Shown]) -> dict[str, Shown]:
    """Finds the rows with one codec for everything, of the documents' cut."""
    plain = (each for each in rows if each.row.work.label == label and each.row.cut == DOCUMENTS and each.records)
    return {
        each.row.codec: each
        for each in plain
        if each.row.codec != NONE and each.row.learned is None and each.row.gradients is None
    }
