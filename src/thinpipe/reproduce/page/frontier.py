"""Draws accuracy against bytes, a panel for each thing that was trained: what crosses the cuts, and what that costs.

Height is the difference to ``none`` of the same table, so that data sets can be seen side by side; breadth is bytes
over those of float32. Who is highest and farthest to the left gives most for the least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from thinpipe.bench.marks import Mark, Series, Shape, legend, spoken_of
from thinpipe.bench.panel import STYLE, Frame, Panel
from thinpipe.bench.svg import document
from thinpipe.reproduce.page.compare import Difference
from thinpipe.reproduce.page.schedule import epochs
from thinpipe.reproduce.training.looks import LOOKS
from thinpipe.reproduce.training.picture import label
from thinpipe.reproduce.training.rows import Shown
from thinpipe.reproduce.training.sheet import stand_ins
from thinpipe.reproduce.training.table import NONE, Row, Table

TITLE = "What fewer bytes cost"
_REMARK = (
    "points of accuracy, or of Matthews' correlation x 100, against training without a codec; bars: deviation of seeds"
)
_ACROSS = "bytes that cross the cuts, both ways, over those of float32"
_TIMES = "; 26x: so many times fewer"
_WIDTH, _LEFT, _RIGHT, _BETWEEN = 800, 40, 788, 44
_TALL, _SHORT = 230, 150
_DEPTH = 5.0
"""Points that every panel shows: a seed alone makes one of them, which must not fill a panel."""
_GROUPS: dict[Shape, str] = {"square": "Epipe's codecs", "circle": "ours", "diamond": "learned bottlenecks"}
_BOTTLENECKS = {
    "conv": "alone",
    "linear": "alone",
    "conv, had:4": "with had:4",
    "conv, wave:4": "with wave:4",
    "conv, wave:2": "with wave:2",
    "linear, had:4": "with had:4",
    "conv, not fitted": "not fitted",
}
"""What series are called in the group of bottlenecks: convolutions and matrices are drawn alike."""


@dataclass(frozen=True)
class _Point:
    row: Row
    ratio: float
    difference: float
    deviation: float


_Panels: TypeAlias = dict[tuple[str, str], list[_Point]]
"""Points by what was trained, and by for how long and with what in its place."""


def frontier(tables: Sequence[tuple[Table, Sequence[Shown]]]) -> str | None:
    """Draws the picture; None where nothing can be compared.

    Args:
        tables: with what is recorded of their rows.
    """
    panels = {about: points for about, points in _panels(tables).items() if len(points) > 1}
    if not panels:
        return None
    parts, y = _legend([point for points in panels.values() for point in points])
    spoken = []
    for line in _lines(panels):
        width = (_RIGHT - _LEFT - _BETWEEN * (len(line) - 1)) / len(line)
        bottoms = []
        for k, about in enumerate(line):
            left = _LEFT + k * (width + _BETWEEN)
            series = [*_series(panels[about])]
            frame = Frame(left=left, top=y + 38, width=width, height=_TALL if len(line) == 1 else _SHORT)
            drawn, bottom = Panel(series=series, frame=frame, highest=0.0, depth=_DEPTH).drawn()
            parts += [_heading(left, y + 6, *about), *drawn]
            bottoms.append(bottom)
            spoken.append(" ".join((*filter(None, about), "; ".join(map(spoken_of, series)))))
        y = max(bottoms) + 20
    said = f'<text x="12" y="42" class="s" font-size="12">{escape(_REMARK)}</text>'
    caption = _ACROSS + (_TIMES if any(point.row.learned for points in panels.values() for point in points) else "")
    across = f'<text x="{_RIGHT}" y="{y:.1f}" class="s" text-anchor="end" font-size="12">{escape(caption)}</text>'
    return document(TITLE, ". ".join(spoken), [STYLE, said, *parts, across], round(y) + 12, _WIDTH)


def _heading(left: float, y: float, name: str, told: str) -> str:
    below = f'<tspan x="{left:.1f}" dy="14" class="s" font-weight="400" font-size="11">{escape(told)}</tspan>'
    return f'<text x="{left:.1f}" y="{y:.1f}" class="l" font-weight="600">{escape(name)}{below}</text>'


def _legend(points: Sequence[_Point]) -> tuple[list[str], float]:
    """Writes a line for each group of series."""
    parts, y = list[str](), 62.0
    looks = {point.row.series: LOOKS[point.row.series] for point in _ordered(points)}
    for shape, group in _GROUPS.items():
        keys = {_named(series): look for series, look in looks.items() if look.shape == shape and series != NONE}
        if keys:
            parts.append(f'<text x="12" y="{y:.1f}" class="l" font-size="12">{escape(group)}</text>')
            drawn, y = legend(list(keys.items()), 160, y, _RIGHT)
            parts.extend(drawn)
    return parts, y + 4


def _panels(tables: Sequence[tuple[Table, Sequence[Shown]]]) -> _Panels:
    """Gathers what can be compared; what two tables have in common is there once."""
    names: dict[str, str] = {}
    found: dict[tuple[str, str], dict[object, _Point]] = {}
    for table, rows in tables:
        if table.by_epoch:  # whose rows are ways to train, and not what one of them loses
            continue
        for each in rows:
            point = _point(each, rows)
            if each.row.elsewhere is None and point is not None:
                name = names.setdefault(each.row.work.recipe, each.row.work.label)
                about = name, "; ".join((epochs([each]), *stand_ins(each.records)))
                found.setdefault(about, {}).setdefault((each.row.both, each.row.learned), point)
    return {about: list(points.values()) for about, points in found.items()}


def _point(each: Shown, rows: Sequence[Shown]) -> _Point | None:
    ratio, found = each.mean("float32_ratio"), Difference.of(each, rows)
    if ratio is None or found is None:
        return None
    return _Point(each.row, ratio, 100 * found.spread.mean, 100 * found.spread.deviation)


def _lines(panels: _Panels) -> list[list[tuple[str, str]]]:
    """Deals panels out to lines: the first alone, the others in pairs."""
    first, *others = panels
    return [[first], *(others[k : k + 2] for k in range(0, len(others), 2))]


def _ordered(points: Sequence[_Point]) -> list[_Point]:
    order = list(LOOKS)
    return sorted(points, key=lambda point: order.index(point.row.series))


def _series(points: Sequence[_Point]) -> Iterator[Series]:
    best, ordered = _best(points), _ordered(points)
    for series in dict.fromkeys(point.row.series for point in ordered):
        marks = [
            Mark(
                name=label(point.row, point.ratio),
                x=point.ratio,
                y=point.difference,
                deviation=point.deviation,
                matters=point in best,
            )
            for point in ordered
            if point.row.series == series
        ]
        yield Series(name=series, look=LOOKS[series], marks=marks)


def _best(points: Sequence[_Point]) -> list[_Point]:
    """Lists those than which none has both fewer bytes and a measure as high."""
    return [
        point
        for point in points
        if not any(other.ratio < point.ratio and other.difference >= point.difference for other in points)
    ]


def _named(series: str) -> str:
    return _BOTTLENECKS.get(series, series)
