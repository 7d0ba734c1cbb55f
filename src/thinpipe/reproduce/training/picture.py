"""Draws the documents' plots anew: accuracy by ratio, a line for each method, or curves by epoch; theirs are dashed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from thinpipe.bench.record import Record
from thinpipe.bench.svg import Curve, plot
from thinpipe.reproduce.training.rows import Shown, shown
from thinpipe.reproduce.training.sheet import stand_ins
from thinpipe.reproduce.training.table import DOCUMENTS, Row, Table, Work

_MEASURES = {"accuracy": "accuracy, %", "mcc": "Matthews' correlation x 100"}


def plots(table: Table) -> dict[str, Work | None]:
    """Lists the plots of a table by name, each with the work whose rows it shows; None for all of them."""
    if table.by_epoch or len(table.works) == 1:
        return {table.name: None}
    return {f"{table.name}-{work.prefix}": work for work in table.works}


def picture(table: Table, work: Work | None, records: Sequence[Record]) -> str:
    """Draws the plot of a table, or of what one of its works gave.

    Args:
        table: which.
        work: of whose rows; None for all.
        records: of any of its rows.
    """
    rows = [each for each in shown(table, records) if each.records and work in (None, each.row.work)]
    told = [row for row in table.rows if work in (None, row.work)]
    series = list(dict.fromkeys(row.series for row in told))
    title = table.title if work is None else f"{table.title}, {work.label}"
    remark = "; ".join(stand_ins([record for each in rows for record in each.records]))
    if table.by_epoch:
        curves = [_by_epoch(each, series.index(each.row.series)) for each in rows]
        curves += [
            Curve(f"{row.series}, documents", _percents(row.published.curve), series.index(row.series), dashed=True)
            for row in told
            if row.published.curve
        ]
        return plot(title, _MEASURES[table.works[0].measure], "epoch", curves, remark=remark)
    curves = [_by_ratio(name, group, series.index(name)) for name, group in _grouped(rows)]
    curves += [_theirs(name, told, number) for number, name in enumerate(series)]
    across = "bytes that cross the cuts over those of float32; the documents' are nominal"
    drawn = [curve for curve in curves if curve.points]
    return plot(title, _MEASURES[told[0].work.measure], across, drawn, remark=remark)


def _grouped(rows: Sequence[Shown]) -> list[tuple[str, list[Shown]]]:
    def name(each: Shown) -> tuple[str, str]:
        return each.row.series, each.row.cut

    ordered = sorted(rows, key=name)
    return [(series, list(group)) for (series, _), group in groupby(ordered, name)]


def _by_epoch(each: Shown, colour: int) -> Curve:
    spreads = each.curve()
    points = [(float(k), 100 * spread.mean, 100 * spread.deviation) for k, spread in enumerate(spreads, 1)]
    cut = "" if each.row.cut == DOCUMENTS else f", {each.row.cut}"
    return Curve(f"{each.row.series}{cut}", points, colour)


def _by_ratio(name: str, rows: Sequence[Shown], colour: int) -> Curve:
    points = []
    for each in rows:
        ratio, found = each.spread("float32_ratio"), each.spread(each.row.work.measure)
        if ratio is not None and found is not None:
            points.append((ratio.mean, 100 * found.mean, 100 * found.deviation))
    cut = "" if rows[0].row.cut == DOCUMENTS else f", {rows[0].row.cut}"
    return Curve(f"{name}{cut}", sorted(points), colour)


def _theirs(name: str, rows: Sequence[Row], colour: int) -> Curve:
    said = [row.published for row in rows if row.series == name]
    points = [
        (each.ratio, 100 * each.value, 100 * (each.deviation or 0.0))
        for each in said
        if each.ratio is not None and each.value is not None
    ]
    return Curve(f"{name}, documents", sorted(points), colour, dashed=True)


def _percents(curve: Sequence[tuple[int, float]]) -> list[tuple[float, float, float]]:
    return [(float(epoch), 100 * value, 0.0) for epoch, value in curve]
