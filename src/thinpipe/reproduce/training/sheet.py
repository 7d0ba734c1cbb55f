"""Sets what was trained beside the published figures, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from thinpipe.bench.record import Record
from thinpipe.bench.sheet import Sheet, notes_of
from thinpipe.reproduce.training.rows import Shown, Spread, shown
from thinpipe.reproduce.training.table import NONE, Published, Table

MEASURES = {"accuracy": "accuracy, %", "mcc": "MCC x 100"}
_SKIPPED = "skipped"
_HOW = (
    "Activations and gradients are packed alike where a row says no more, "
    "in training and in tests. Ratio: bytes that crossed the cuts, both "
    "ways and with their headers, over those of the tensors as they were, before any bottleneck; of float32: over what "
    "they would be in that, which is how Epipe counts. Mean and standard deviation over seeds, after the last "
    "epoch and of the best."
)


def table_sheet(table: Table, records: Sequence[Record], skipped: Mapping[str, str] | None = None) -> Sheet:
    """Shows the rows of a table, those that were skipped with the reason below.

    Args:
        table: which.
        records: of its rows.
        skipped: for names of rows why they were not trained (default: none was skipped).
    """
    rows = shown(table, records, skipped)
    several, learned = len(table.works) > 1, any(row.learned is not None for row in table.rows)
    measure = table.works[0].measure
    heads = [
        *(["trained"] if several else []),
        "row",
        "codec, cut 1",
        "codec, cut 2",
        "cut",
        *(["bottlenecks"] if learned else []),
        MEASURES[measure],
        "best",
    ]
    heads += ["published", "of float32", "published ratio", "ratio", "cut 1", "cut 2", "seeds", "epochs", "samples/s"]
    lines = [[*([each.row.work.label] if several else []), *_cells(each, learned=learned)] for each in rows]
    told = "; ".join(stand_ins(records))
    title = f"{table.title} ({told})" if told else table.title
    return Sheet(title, heads, lines, [_HOW, *notes_below(table, rows)], MEASURES[measure])


def stand_ins(records: Sequence[Record]) -> list[str]:
    """Lists what stands in for what Epipe trained."""
    return list(dict.fromkeys(label for record in records if (label := record.settings["stand_in"]) is not None))


def _cells(each: Shown, *, learned: bool) -> list[str]:
    row, measure = each.row, each.row.work.measure
    begin, theirs = [row.name, *row.codecs, row.cut], published(row.published)
    begin += [bottlenecks(each)] if learned else []
    nominal, seeds = figure(row.published.ratio), len(each.records)
    if not seeds:
        return [*begin, _SKIPPED, "-", theirs, "-", nominal, "-", "-", "-", "0", "-", "-"]
    return [
        *begin,
        percent(each.spread(measure), seeds),
        percent(each.spread(f"best_{measure}"), seeds),
        theirs,
        figure(each.mean("float32_ratio")),
        nominal,
        *(figure(each.mean(name)) for name in ("ratio", "ratio_cut_1", "ratio_cut_2")),
        str(seeds),
        figure(each.mean("epochs"), "{:.0f}"),
        figure(each.mean("samples_per_second"), "{:,.0f}"),
    ]


def bottlenecks(each: Shown) -> str:
    """Says what a row was trained with: a small work has smaller ones."""
    learned = each.row.learned
    if learned is None:
        return NONE
    text = next((record.settings["recipe"]["bottleneck"] for record in each.records), learned.text)
    return f"{text}" if learned.fitted else f"{text}, not fitted"


def percent(spread: Spread | None, seeds: int) -> str:
    """Writes a share in percent, with its deviation where there are several seeds."""
    return "-" if spread is None else spread.written(seeds)


def figure(value: float | None, form: str = "{:.4g}") -> str:
    """Writes a number, if there is one."""
    return "-" if value is None else form.format(value)


def published(said: Published) -> str:
    """Writes a published figure."""
    if said.value is None:
        return "-"
    upto = "" if said.upto is None else f" to {100 * said.upto:.2f}"
    return f"{100 * said.value:.2f}{upto}" + ("" if said.deviation is None else f" ± {100 * said.deviation:.2f}")


def notes_below(table: Table, rows: Sequence[Shown]) -> Iterator[str]:
    """Lists what a reader must know of the published figures, and what the records say of themselves.

    Args:
        table: which.
        rows: those that are shown.
    """
    records = [record for each in rows for record in each.records]
    yield table.source
    notes: dict[str, list[str]] = {}
    for each in rows:
        if each.row.published.note:
            notes.setdefault(f"the published figure is {each.row.published.note}", []).append(each.row.name)
        if each.skipped is not None:
            notes.setdefault(f"skipped: {each.skipped}", []).append(each.row.name)
    yield from (f"{', '.join(names)}: {note}." for note, names in notes.items())
    for label in stand_ins(records):
        yield f"S{label[1:]}: compare codecs with each other, and no row with a published one."
    yield from dict.fromkeys(filter(None, (_data_note(each) for each in rows)))
    yield from notes_of(records)


def _data_note(each: Shown) -> str | None:
    """Says that a data set is not Epipe's: then codecs can be compared with each other alone."""
    work, record = each.row.work, next(iter(each.records), None)
    if record is None or record.settings["tiny"]:
        return None
    ours = record.results["train_rows"], record.results["test_rows"]
    if ours == work.samples:
        return None
    return (
        f"{work.label}: {ours[0]:,.0f} samples to train on and {ours[1]:,.0f} to test with, where Epipe had "
        f"{work.samples[0]:,} and {work.samples[1]:,}; compare codecs with each other, and no accuracy with theirs."
    )
