"""Writes charts as SVG: readable in light and dark, with a title and a description for those who hear them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756")
_MORE_COLOURS = (*_COLOURS, "#72b7b2", "#9d755d", "#ff9da6", "#8e8e8e", "#bab63f")
_STYLE = (
    "<style>.l{fill:#333}.s{fill:#777}.i{stroke:#ccc;fill:none}"
    "@media (prefers-color-scheme: dark){.l{fill:#ddd}.s{fill:#999}.i{stroke:#555}}</style>"
)
_WIDTH, _LEFT, _RIGHT, _TOP = 720, 190, 640, 64
_LETTER = 7.4
"""How wide a letter of a row's name is, about."""


def bar_chart(title: str, measure: str, rows: Mapping[str, Mapping[str, float | None]]) -> str:
    """Draws a group of bars for each row, one for each series.

    Args:
        title: what is compared.
        measure: what a bar's length means, with its unit.
        rows: for each row the value of each series; None leaves its place empty.
    """
    series = list(dict.fromkeys(name for values in rows.values() for name in values))
    known = [value for values in rows.values() for value in values.values() if value is not None]
    left = max([_LEFT, *(8 + round(_LETTER * len(row)) for row in rows)])
    scale = (_RIGHT - left) / (max(known, default=0) or 1)
    parts, y = list(_legend(series)), _TOP
    for row, values in rows.items():
        middle = y + 7 * len(series) + 4
        parts.append(f'<text x="{left - 8}" y="{middle}" class="l" text-anchor="end">{escape(row)}</text>')
        for name in series:
            parts.extend(_bar(left, y, values.get(name), scale, _COLOURS[series.index(name) % len(_COLOURS)]))
            y += 14
        y += 10
    parts.append(f'<line x1="{left}" y1="{_TOP - 6}" x2="{left}" y2="{y}" class="i"/>')
    spoken = "; ".join(
        f"{row}: " + ", ".join(f"{name} {_plain(value)}" for name, value in values.items())
        for row, values in rows.items()
    )
    return document(f"{title}: {measure}", spoken, parts, y + 10)


def line_chart(title: str, measure: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Draws a line for each series through its means, in a band of its deviations.

    Args:
        title: what is compared.
        measure: what the height means.
        curves: for each series the mean and the deviation at each epoch.
    """
    top, bottom = _TOP, _TOP + 240
    highest = max((mean + deviation for curve in curves.values() for mean, deviation in curve), default=0) or 1
    longest = max(map(len, curves.values()), default=1)

    def place(epoch: int, value: float) -> str:
        x = _LEFT + (_RIGHT - _LEFT) * (epoch / max(1, longest - 1))
        return f"{x:.1f},{bottom - (bottom - top) * max(0.0, value) / highest:.1f}"

    parts = list(_legend(list(curves)))
    parts.append(f'<path d="M{_LEFT},{top} V{bottom} H{_RIGHT}" class="i"/>')
    parts.append(f'<text x="{_LEFT - 8}" y="{top + 4}" class="s" text-anchor="end">{_plain(highest)}</text>')
    parts.append(f'<text x="{_LEFT - 8}" y="{bottom + 4}" class="s" text-anchor="end">0</text>')
    parts.append(f'<text x="{_RIGHT}" y="{bottom + 18}" class="s" text-anchor="end">epoch {longest}</text>')
    for k, curve in enumerate(curves.values()):
        colour = _COLOURS[k % len(_COLOURS)]
        upper = [place(epoch, mean + deviation) for epoch, (mean, deviation) in enumerate(curve)]
        lower = [place(epoch, mean - deviation) for epoch, (mean, deviation) in enumerate(curve)]
        parts.append(f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{colour}" fill-opacity=".2"/>')
        line = " ".join(place(epoch, mean) for epoch, (mean, _) in enumerate(curve))
        dashes = ' stroke-dasharray="6 4"' if k else ""  # where curves coincide both are seen
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
    last = "; ".join(f"{name} ends at {_plain(curve[-1][0])}" for name, curve in curves.items() if curve)
    return document(f"{title}: {measure}", last, parts, bottom + 30)


def point_chart(
    title: str, measure: str, across: str, points: Mapping[str, Mapping[str, tuple[float, float]]], *, joined: bool
) -> str:
    """Draws a point for each name of each series, by two measures, both in powers.

    Args:
        title: what is compared.
        measure: what the height means, in powers of ten; what is not above 0 has no place.
        across: what the breadth means, in powers of two; the same.
        points: for each series the two values of each name, the one across first.
        joined: whether a line joins the points of a series, whose names are then not written beside them.
    """
    places = {
        series: {name: (math.log2(x), math.log10(y)) for name, (x, y) in named.items() if x > 0 and y > 0}
        for series, named in points.items()
    }
    known = [place for named in places.values() for place in named.values()]
    left, right, top, bottom = 70, 700, _TOP, _TOP + 500
    low_x, high_x = _whole(x for x, _ in known)
    low_y, high_y = _whole(y for _, y in known)

    def pixels(x: float, y: float) -> tuple[float, float]:
        across_share, up_share = (x - low_x) / (high_x - low_x), (y - low_y) / (high_y - low_y)
        return left + (right - left) * across_share, bottom - (bottom - top) * up_share

    parts = list(_legend(list(points)))
    for tick in range(low_x, high_x + 1):
        x, _ = pixels(tick, low_y)
        parts.append(f'<path d="M{x:.1f},{top} V{bottom}" class="i"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" class="s" text-anchor="middle">{_plain(2.0**tick)}</text>')
    for tick in range(low_y, high_y + 1):
        _, y = pixels(low_x, tick)
        parts.append(f'<path d="M{left},{y:.1f} H{right}" class="i"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" class="s" text-anchor="end">{_plain(10.0**tick)}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 34}" class="s" text-anchor="end">{escape(across)}</text>')
    everywhere = [pixels(*place) for place in known]
    taken = [(x - 4, x + 4, y) for x, y in everywhere]
    for k, named in enumerate(places.values()):
        colour, drawn = _COLOURS[k % len(_COLOURS)], {name: pixels(*place) for name, place in named.items()}
        if joined:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn.values())
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for name, (x, y) in drawn.items():
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
            parts.extend(() if joined else _beside(name, x, y, taken))
    spoken = "; ".join(
        f"{name}: {_plain(y)} at {_plain(x)}" for named in points.values() for name, (x, y) in named.items()
    )
    return document(f"{title}: {measure}", spoken, parts, bottom + 44)


@dataclass(frozen=True)
class Curve:
    """A line of a ``plot``.

    Args:
        name: in the legend.
        points: x, y and the deviation of y, in the order in which they are joined.
        colour: its number; curves that belong together have the same one.
        dashed: whether it is somebody else's, to be told from ours (default: it is not).
    """

    name: str
    points: Sequence[tuple[float, float, float]]
    colour: int
    dashed: bool = False


def plot(title: str, measure: str, across: str, curves: Sequence[Curve], *, remark: str = "") -> str:
    """Draws curves over a grid of even numbers, with a bar for each deviation.

    Args:
        title: what is compared.
        measure: what the height means.
        across: what the breadth means.
        curves: in the order of the legend.
        remark: below the title (default: none).
    """
    legend, top = _long_legend(curves, 64 if remark else 45)
    left, right, bottom = 70, 700, top + 360
    known = [point for curve in curves for point in curve.points]
    ticks_x = even(x for x, _, _ in known)
    ticks_y = even(y + sign * deviation for _, y, deviation in known for sign in (-1, 1))

    def pixels(x: float, y: float) -> tuple[float, float]:
        share_x, share_y = ((v - t[0]) / (t[-1] - t[0]) for v, t in ((x, ticks_x), (y, ticks_y)))
        return left + (right - left) * share_x, bottom - (bottom - top) * share_y

    parts = [f'<text x="12" y="42" class="s">{escape(remark)}</text>'] if remark else []
    parts.extend(legend)
    for tick in ticks_x:
        x, _ = pixels(tick, ticks_y[0])
        parts.append(f'<path d="M{x:.1f},{top} V{bottom}" class="i"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" class="s" text-anchor="middle">{_plain(tick)}</text>')
    for tick in ticks_y:
        _, y = pixels(ticks_x[0], tick)
        parts.append(f'<path d="M{left},{y:.1f} H{right}" class="i"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" class="s" text-anchor="end">{_plain(tick)}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 34}" class="s" text-anchor="end">{escape(across)}</text>')
    for curve in curves:
        parts.extend(_drawn(curve, pixels))
    spoken = "; ".join(
        f"{curve.name}: " + ", ".join(f"{_plain(y)} at {_plain(x)}" for x, y, _ in curve.points) for curve in curves
    )
    return document(f"{title}: {measure}", f"{remark}; {spoken}" if remark else spoken, parts, bottom + 44)


def _drawn(curve: Curve, pixels: Callable[[float, float], tuple[float, float]]) -> Iterator[str]:
    colour = _MORE_COLOURS[curve.colour % len(_MORE_COLOURS)]
    dashes = ' stroke-dasharray="5 4"' if curve.dashed else ""
    places = [pixels(x, y) for x, y, _ in curve.points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
    for (x, y, deviation), (at, height) in zip(curve.points, places, strict=True):
        if deviation:
            _, high = pixels(x, y + deviation)
            _, low = pixels(x, y - deviation)
            yield f'<path d="M{at:.1f},{high:.1f} V{low:.1f}" stroke="{colour}" stroke-width="1.5"/>'
        inside = "none" if curve.dashed else colour
        yield f'<circle cx="{at:.1f}" cy="{height:.1f}" r="3.5" fill="{inside}" stroke="{colour}"/>'


def even(values: Iterable[float]) -> list[float]:
    """Finds even numbers around all values, at equal distances of 1, 2 or 5 times a power of ten."""
    known = list(values) or [0.0, 1.0]
    low, high = min(known), max(known)
    if low == high:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [step * k for k in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _long_legend(curves: Sequence[Curve], y: int) -> tuple[list[str], int]:
    """Writes a legend from a height on, in as many lines as it takes, and tells where the drawing may begin."""
    parts: list[str] = []
    x = 12
    for curve in curves:
        width = 40 + 7 * len(curve.name)
        if x > 12 and x + width > _WIDTH:
            x, y = 12, y + 18
        colour = _MORE_COLOURS[curve.colour % len(_MORE_COLOURS)]
        dashes = ' stroke-dasharray="5 4"' if curve.dashed else ""
        parts.append(f'<path d="M{x},{y - 4} H{x + 18}" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.append(f'<text x="{x + 23}" y="{y}" class="s">{escape(curve.name)}</text>')
        x += width
    return parts, y + 20


def _whole(values: Iterable[float]) -> tuple[int, int]:
    """Finds whole numbers around all values, at least one apart."""
    known = list(values) or [0.0]
    low = math.floor(min(known))
    return low, max(low + 1, math.ceil(max(known)))


def _beside(name: str, x: float, y: float, taken: list[tuple[float, float, float]]) -> Iterator[str]:
    """Writes a name beside its point, or as near as there is nothing else."""
    width = 5.6 * len(name)
    starts = [start for start in (x + 7, x - 7 - width) if start > 0 and start + width < _WIDTH]
    for away, start in product(sorted(range(-150, 151, 5), key=abs), starts):
        if all(abs(y + away - other) >= 10 or start + width < a or b < start for a, b, other in taken):
            break
    taken.append((start, start + width, y + away))
    if away:
        end = start - 1 if start > x else start + width + 1
        yield f'<path d="M{x:.1f},{y:.1f} L{end:.1f},{y + away:.1f}" class="i"/>'
    yield f'<text x="{start:.1f}" y="{y + away + 3:.1f}" class="l" font-size="10">{escape(name)}</text>'


def _legend(series: Sequence[str]) -> Iterator[str]:
    x = _LEFT
    for k, name in enumerate(series):
        yield f'<rect x="{x}" y="36" width="10" height="10" fill="{_COLOURS[k % len(_COLOURS)]}"/>'
        yield f'<text x="{x + 15}" y="45" class="s">{escape(name)}</text>'
        x += 35 + 7 * len(name)


def _bar(left: int, y: int, value: float | None, scale: float, colour: str) -> Iterator[str]:
    width = 0.0 if value is None else max(0.0, value) * scale
    if value is not None:
        yield f'<rect x="{left}" y="{y}" width="{width:.1f}" height="12" fill="{colour}"/>'
    yield f'<text x="{left + width + 6:.1f}" y="{y + 10}" class="s" font-size="11">{_plain(value)}</text>'


def _plain(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def document(title: str, description: str, parts: Sequence[str], height: int, width: int = _WIDTH) -> str:
    """Makes a picture of its parts.

    Args:
        title: above it.
        description: for those who hear it.
        parts: all else.
        height: in pixels.
        width: the same (default: that of the other charts).
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="t d" font-family="system-ui, sans-serif" font-size="13">'
    )
    names = f'<title id="t">{escape(title)}</title>\n<desc id="d">{escape(description)}</desc>'
    caption = f'<text x="12" y="22" class="l" font-weight="600">{escape(title)}</text>'
    return "\n".join([head, names, _STYLE, caption, *parts, "</svg>"]) + "\n"
