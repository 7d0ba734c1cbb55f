"""Draws published plots anew: accuracy by ratio, a line for each method, or curves by epoch; theirs are hollow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from thinpipe.bench.marks import Mark, Series, legend, spoken_of
from thinpipe.bench.panel import STYLE, Frame, Panel
from thinpipe.bench.record import Record
from thinpipe.bench.svg import Curve, document, plot
from thinpipe.reproduce.training.looks import LOOKS
from thinpipe.reproduce.training.rows import Shown, shown
from thinpipe.reproduce.training.sheet import stand_ins
from thinpipe.reproduce.training.table import Row, Table, Work

_MEASURES = {"accuracy": "accuracy, %", "mcc": "Matthews' correlation x 100"}
_LEFT, _RIGHT, _HEIGHT = 50, 700, 360
_ACROSS = "bytes that cross the cuts over those of float32, 26x: so many times fewer; published ones are nominal"


@dataclass(frozen=True, kw_only=True)
class View:
    """What one plot of a table shows.

    Args:
        work: whose rows; None for those of all.
        by_epoch: whether it has a curve for each row, by epoch, and not a line for each series by ratio.
        codecs: the rows' codecs; empty for all.
    """

    work: Work | None
    by_epoch: bool
    codecs: tuple[str, ...] = ()

    def shows(self, row: Row) -> bool:
        """Tells whether a row is in it."""
        return self.work in (None, row.work) and (not self.codecs or row.both in self.codecs)

    def name_of(self, row: Row) -> str:
        """Names a row's curve: by its codec, where codecs were chosen."""
        return row.both if self.codecs else row.series


def plots(table: Table) -> dict[str, View]:
    """Lists the plots of a table by name."""
    if table.by_epoch or len(table.works) == 1:
        found = {table.name: View(work=None, by_epoch=table.by_epoch)}
    else:
        names = {"-".join(filter(None, (table.name, work.prefix))): work for work in table.works}
        found = {name: View(work=work, by_epoch=False) for name, work in names.items()}
    if table.curves:
        found[f"{table.name}-by-epoch"] = View(work=None, by_epoch=True, codecs=table.curves)
    return found


def picture(table: Table, view: View, records: Sequence[Record]) -> str:
    """Draws a plot of a table.

    Args:
        table: which.
        view: one of its ``plots``.
        records: of any of its rows.
    """
    rows = [each for each in shown(table, records) if each.records and view.shows(each.row)]
    rows = [each for each in rows if table.draws(each.row)]
    told = [row for row in table.rows if view.shows(row)]
    title = table.title if view.work is None else f"{table.title}, {view.work.label}"
    measure = _MEASURES[told[0].work.measure]
    remark = "; ".join(stand_ins([record for each in rows for record in each.records]))
    if not view.by_epoch:
        return _against_ratio(title, measure, [*_ours(rows)], [*_theirs(told)], remark)
    colours = {name: k for k, name in enumerate(dict.fromkeys(map(view.name_of, told)))}
    curves = [_by_epoch(each, view.name_of(each.row), colours) for each in rows]
    curves += [
        Curve(f"{name}, published", _percents(row.published.curve), colours[name], dashed=True)
        for row in told
        if row.published.curve
        for name in (view.name_of(row),)
    ]
    return plot(title, measure, "epoch", curves, remark=remark)


def _against_ratio(title: str, measure: str, ours: list[Series], theirs: list[Series], remark: str) -> str:
    """Draws ours and theirs in one panel; or apart, with a remark that they trained something else."""
    everything = ours + theirs
    keys, top = legend([(each.name, each.look) for each in everything], _LEFT, 64 if remark else 46, _RIGHT)
    reach = [mark.x for each in everything for mark in each.marks]
    panels = [(ours, _HEIGHT), (theirs, _HEIGHT // 2)] if remark else [(everything, _HEIGHT)]
    parts, bottom = [f'<text x="12" y="42" class="s">{escape(remark)}</text>'] if remark else [], top - 8
    for series, height in panels:
        if series:
            frame = Frame(left=_LEFT, top=bottom + 12, width=_RIGHT - _LEFT, height=height)
            drawn, bottom = Panel(series=series, frame=frame, reach=reach).drawn()
            parts += drawn
    across = f'<text x="{_RIGHT}" y="{bottom + 14:.1f}" class="s" text-anchor="end" font-size="12">{_ACROSS}</text>'
    spoken = "; ".join(filter(None, (remark, *map(spoken_of, everything))))
    return document(f"{title}: {measure}", spoken, [STYLE, *keys, *parts, across], round(bottom) + 24)


def _grouped(rows: Sequence[Shown]) -> list[list[Shown]]:
    groups: dict[tuple[str, str], list[Shown]] = {}
    for each in rows:
        groups.setdefault((each.row.series, each.row.cut), []).append(each)
    return list(groups.values())


def _by_epoch(each: Shown, name: str, colours: Mapping[str, int]) -> Curve:
    spreads = each.curve()
    points = [(float(k), 100 * spread.mean, 100 * spread.deviation) for k, spread in enumerate(spreads, 1)]
    cut = "" if each.row.elsewhere is None else f", {each.row.cut}"
    return Curve(f"{name}{cut}", points, colours[name])


def _ours(rows: Sequence[Shown]) -> Iterator[Series]:
    for group in _grouped(rows):
        name, marks = group[0].row.series, []
        for each in group:
            ratio, found = each.spread("float32_ratio"), each.spread(each.row.work.measure)
            if ratio is not None and found is not None:
                deviation = 100 * found.deviation
                marks.append(
                    Mark(name=label(each.row, ratio.mean), x=ratio.mean, y=100 * found.mean, deviation=deviation)
                )
        cut = "" if group[0].row.elsewhere is None else f", {group[0].row.cut}"
        yield Series(name=f"{name}{cut}", look=LOOKS[name], marks=marks)


def label(row: Row, ratio: float) -> str:
    """Names a row beside its mark: by its codec, or a bottleneck by how many times fewer bytes it sends.

    Args:
        row: which.
        ratio: bytes over those of float32.
    """
    codec = row.both if row.learned is None else f"{1 / ratio:.0f}x"
    return codec if row.elsewhere is None else f"{codec}, {row.cut}"


def _theirs(rows: Sequence[Row]) -> Iterator[Series]:
    for name in dict.fromkeys(row.series for row in rows):
        said = [row.published for row in rows if row.series == name]
        marks = [
            Mark(name="", x=each.ratio, y=100 * each.value, deviation=100 * (each.deviation or 0.0))
            for each in said
            if each.ratio is not None and each.value is not None
        ]
        if marks:
            yield Series(name=f"{name}, published", look=replace(LOOKS[name], hollow=True), marks=marks)


def _percents(curve: Sequence[tuple[int, float]]) -> list[tuple[float, float, float]]:
    return [(float(epoch), 100 * value, 0.0) for epoch, value in curve]
