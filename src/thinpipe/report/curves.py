"""Charts of curves: losses over steps, accuracies over epochs, rates over steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from thinpipe.report.drawing import HALF, across, at_widths, line, marker, svg, text, upwards
from thinpipe.report.markup import Markup, element
from thinpipe.report.scale import Linear
from thinpipe.report.thin import Point, thinned

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 42
_MARKS = 5
"""How often the marker of a series is on its line."""


@dataclass(frozen=True)
class Curve:
    """A series.

    Args:
        label: of the series.
        number: decides about colour, dashes and marker.
        points: in order of their first numbers.
        run: the place of the run that it stands for, by which a reader can hide it (default: it cannot be hidden).
        thin: whether it is drawn as something beside the point.
        peaks: whether the largest of neighbours counts where there are too many, instead of their mean.
    """

    label: str
    number: int
    points: Sequence[Point]
    run: int | None = None
    thin: bool = False
    peaks: bool = False

    def at_most(self, count: int) -> Curve:
        """Returns the curve with no more points than so many, all of them finite."""
        return replace(self, points=thinned(self.points, count, of=max if self.peaks else fmean))


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What a chart of curves shows.

    Args:
        name: by which it differs from all others of the page.
        title: what it is.
        across: what the breadth means.
        say: writes a value beside the axis.
        tell: writes a value where a reader points at it.
        zero: whether the axis begins at 0.
        limit: a value with a line through the chart, and what is written on it (default: none).
        highest: the least value that the axis reaches, so that charts beside each other have the same (default: none).
        whole: whether the breadth is in whole numbers, each of which has a point.
    """

    name: str
    title: str
    across: str
    say: Callable[[float], str]
    tell: Callable[[float], str]
    zero: bool = True
    limit: tuple[float, str] | None = None
    highest: float | None = None
    whole: bool = False


def curve_chart(chart: Chart, curves: Sequence[Curve]) -> Markup | None:
    """Draws curves for all widths; None where there is no point to draw."""
    if not any(curve.at_most(1).points for curve in curves):
        return None
    return at_widths(HALF, lambda size, width: _drawn(chart, curves, size, width))


def _drawn(chart: Chart, curves: Sequence[Curve], size: str, width: int) -> Markup:
    height = 250 if width > 400 else 216
    shown = [each for each in (curve.at_most(width // 3) for curve in curves) if each.points]
    x, y = _scales(chart, shown, width, height)
    parts = [
        *upwards(y, left=_LEFT, right=width - _RIGHT, say=chart.say, most=5),
        *across(x, bottom=height - _BOTTOM, say=lambda value: f"{value:,.10g}", most=_most(x, width, chart)),
        text(chart.across, width - _RIGHT, height - 6, anchor="end"),
        *(_curve(curve, x, y) for curve in shown),
        *_limit(chart, y, width),
        *_hits(chart, shown, x, height),
    ]
    return svg(chart.name, size, *parts, width=width, height=height, title=chart.title, said=_said(chart, curves))


def _scales(chart: Chart, shown: Sequence[Curve], width: int, height: int) -> tuple[Linear, Linear]:
    values = [value for curve in shown for _, value in curve.points]
    values += [chart.highest] if chart.highest is not None else []
    values += [chart.limit[0]] if chart.limit is not None else []
    y = Linear.around(values, height - _BOTTOM, _TOP, zero=chart.zero)
    places = [place for curve in shown for place, _ in curve.points]
    low, high = min(places), max(places)
    # A single point, or several in one place, are in the middle.
    room = 0.5 if high == low else 0.0
    return Linear(low - room, high + room, _LEFT + 8, width - _RIGHT - 8), y


def _most(x: Linear, width: int, chart: Chart) -> int:
    fits = 4 if width < 400 else 7
    return max(1, min(fits, round(x.high - x.low))) if chart.whole else fits


def _limit(chart: Chart, y: Linear, width: int) -> Iterator[Markup]:
    if chart.limit is not None:
        value, words = chart.limit
        yield element("path", d=f"M{_LEFT},{y(value):.1f}H{width - _RIGHT}", class_="limit")
        yield text(words, width - _RIGHT - 2, y(value) - 5, kind="halo", anchor="end")


def _curve(curve: Curve, x: Linear, y: Linear) -> Markup:
    places = [(x(place), y(value)) for place, value in curve.points]
    parts = [line(places, curve.number, thin=curve.thin)] if len(places) > 1 else []
    # Markers of several series are at other places, or the last one would hide the others where curves coincide.
    count = len(places)
    first = (curve.number * count // (_MARKS * 3)) % max(1, count // _MARKS)
    chosen = places if count <= 2 * _MARKS else places[first :: max(1, count // _MARKS)]
    if not curve.thin:
        parts += [marker(*place, curve.number) for place in chosen]
    return element("g", *parts, data_run=None if curve.run is None else str(curve.run))


def _hits(chart: Chart, shown: Sequence[Curve], x: Linear, height: int) -> Iterator[Markup]:
    """Draws columns that cannot be seen, each with the values there for whoever points at it."""
    places = sorted({place for curve in shown for place, _ in curve.points})
    most = 14 if x.end < 400 else 28
    places = [place for place, _ in thinned([(place, place) for place in places], most)]
    edges = [x.start - 8, *(x((one + next_) / 2) for one, next_ in pairwise(places)), x.end + 8]
    for place, (left, right) in zip(places, pairwise(edges), strict=True):
        # A run that ended earlier has nothing to say here.
        found = [(curve, _nearest(curve.points, place)) for curve in shown if _reaches(curve, x, left, right)]
        lines = [f"{curve.label}: {chart.tell(value)}" for curve, value in found]
        tip = "\n".join([f"{chart.across} {round(place):,}", *lines])
        box = {"x": left, "y": float(_TOP), "width": right - left, "height": float(height - _TOP - _BOTTOM)}
        yield element("rect", element("title", tip), class_="hit", **box)


def _reaches(curve: Curve, x: Linear, left: float, right: float) -> bool:
    return x(curve.points[0][0]) < right and x(curve.points[-1][0]) >= left


def _nearest(points: Sequence[Point], place: float) -> float:
    k = bisect_left(points, place, key=lambda point: point[0])
    return min(points[max(0, k - 1) : k + 1], key=lambda point: abs(point[0] - place))[1]


def _said(chart: Chart, curves: Sequence[Curve]) -> str:
    """Says where each curve begins and ends."""
    told = []
    for curve in curves:
        points = thinned(curve.points, len(curve.points) or 1)
        if points:
            (first, low), (last, high) = points[0], points[-1]
            told.append(f"{curve.label}: {chart.tell(low)} at {first:,.10g}, {chart.tell(high)} at {last:,.10g}")
    return f"By {chart.across}. {'; '.join(told)}."
