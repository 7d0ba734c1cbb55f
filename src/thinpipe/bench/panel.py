"""A panel of marks, as SVG: a measure against a ratio in powers, with names beside the marks.

What lies far below everything else would press the rest flat; it is put into a strip under the panel, with its value::

    0 |        a----b---c
    - |      a     /
    - |___________/______
      |     v d -84.6        the strip
      0.01      0.1     1
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from thinpipe.bench.labels import Box, Room, width_of
from thinpipe.bench.marks import Look, Mark, Series, shape
from thinpipe.bench.svg import even

STYLE = (
    "<style>svg{background:#fff}.h{stroke:#fff}.z{fill:#f3f3f3}"
    "@media (prefers-color-scheme: dark){svg{background:#161b22}.h{stroke:#161b22}.z{fill:#21262d}}</style>"
)
"""Of the grounds that panels lie on: their own, for a page may be dark where a reader's machine is not."""

_DEPTHS = (1, 2, 5, 10, 20, 50, 100)
_LINE = 15


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Where a panel is, in pixels; what is written beside its axes is outside.

    Args:
        left: of the panel.
        top: the same.
        width: the same.
        height: without the strip.
    """

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Of the panel."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Of the panel; the strip is below."""
        return self.top + self.height


@dataclass
class Panel:
    """A panel that is being drawn.

    Args:
        series: in the order in which they are drawn.
        frame: where.
        highest: the value that others are seen against (default: the highest mark).
        depth: how far below that the axis reaches at least, so that small differences look small (default: as far as
            there are marks).
        reach: ratios that the axis has room for, with marks or without (default: those of the marks).
    """

    series: Sequence[Series]
    frame: Frame
    highest: float | None = None
    depth: float = 0.0
    reach: Sequence[float] = ()

    def __post_init__(self) -> None:
        marks = [mark for each in self.series for mark in each.marks]
        floor = floor_of([mark.y for mark in marks], self.highest, depth=self.depth)
        seen = [mark for mark in marks if mark.y >= floor]
        top = max((mark.y for mark in seen), default=0.0) if self.highest is None else self.highest
        least = floor - 0.5 * (top - floor)  # a long bar may be cut off
        ends = [max(least, mark.y + sign * mark.deviation) for mark in seen for sign in (-1, 1)]
        ends += [top - self.depth] if self.highest is None else [self.highest, self.highest - self.depth]
        self._ticks = even(ends)
        self._floor = self._ticks[0]
        breadth = [*(mark.x for mark in marks), *self.reach]
        low, high = (pick(breadth, default=1.0) for pick in (min, max))
        self._low, self._high = math.log10(low) - 0.08, math.log10(high) + 0.08

    def drawn(self) -> tuple[list[str], float]:
        """Draws it; tells how far down it reaches, with the strip and the numbers below."""
        sunk = [(each.look, mark) for each in self.series for mark in each.marks if mark.y < self._floor]
        rows = self._rows(sunk)
        end = self.frame.bottom + _LINE * len(rows) + (4 if rows else 0)
        parts = [*self._grid(end)]
        for each in self.series:
            parts.extend(self._line(each))
        for each in self.series:
            for mark in each.marks:
                if mark.y >= self._floor:
                    parts.extend(self._mark(each.look, mark))
        parts.extend(self._names())
        for number, row in enumerate(rows):
            y = self.frame.bottom + 4 + _LINE * (number + 0.5)
            parts.extend(part for look, mark, left in row for part in _sunk(look, mark, left, y))
        return parts, end + 20

    def _place(self, x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - self._low) / (self._high - self._low)
        up = (y - self._floor) / (self._ticks[-1] - self._floor)
        return self.frame.left + self.frame.width * across, self.frame.bottom - self.frame.height * up

    def _grid(self, end: float) -> Iterator[str]:
        frame = self.frame
        if end > frame.bottom:
            size = f'width="{frame.width:.1f}" height="{end - frame.bottom:.1f}"'
            yield f'<rect x="{frame.left:.1f}" y="{frame.bottom:.1f}" {size} class="z"/>'
            yield _number(frame.left - 6, frame.bottom + 16, "end", "below")
        for tick, said in ratios(10**self._low, 10**self._high):
            x, _ = self._place(tick, self._floor)
            yield f'<path d="M{x:.1f},{frame.top:.1f} V{end:.1f}" class="i"/>'
            if said:
                yield _number(x, end + 14, "middle", f"{tick:g}")
        for tick in self._ticks:
            _, y = self._place(1.0, tick)
            yield f'<path d="M{frame.left:.1f},{y:.1f} H{frame.right:.1f}" class="i"/>'
            yield _number(frame.left - 6, y + 4, "end", f"{tick:.3g}")

    def _line(self, series: Series) -> Iterator[str]:
        """Joins the marks as far as they are seen; a line to one below ends at the floor."""
        marks = sorted(series.marks, key=lambda mark: mark.x)
        dashes = ' stroke-dasharray="5 4"' if series.look.hollow else ""
        for points in _seen([(math.log10(mark.x), mark.y) for mark in marks], self._floor):
            text = " ".join("{:.1f},{:.1f}".format(*self._place(10**x, y)) for x, y in points)
            style = f'fill="none" stroke="{series.look.colour}" stroke-width="1.5" stroke-opacity=".6"{dashes}'
            yield f'<polyline points="{text}" {style}/>'

    def _mark(self, look: Look, mark: Mark) -> Iterator[str]:
        x, y = self._place(mark.x, mark.y)
        if mark.deviation:
            low, high = self._bar(mark)
            yield f'<path d="M{x:.1f},{high:.1f} V{low:.1f}" stroke="{look.colour}" stroke-opacity=".6"/>'
        yield shape(look, x, y)

    def _bar(self, mark: Mark) -> tuple[float, float]:
        ends = (max(self._floor, mark.y + sign * mark.deviation) for sign in (-1, 1))
        low, high = (self._place(mark.x, end)[1] for end in ends)
        return low, high

    def _names(self) -> Iterator[str]:
        """Writes names beside marks, those that matter first."""
        seen = [mark for each in self.series for mark in each.marks if mark.y >= self._floor]
        taken = []
        for mark in seen:
            x, y = self._place(mark.x, mark.y)
            low, high = self._bar(mark)
            taken += [Box(x - 5, y - 5, x + 5, y + 5), Box(x - 1, high, x + 1, low)]
        frame = self.frame
        room = Room(Box(frame.left + 2, frame.top - 12, frame.right + 10, frame.bottom - 1), taken)
        for mark in sorted(seen, key=lambda mark: not mark.matters):
            x, y = self._place(mark.x, mark.y)
            box = room.beside(mark.name, x, y, far=mark.matters) if mark.name else None
            if box is not None:
                yield from _written(mark.name, box, x, y)

    def _rows(self, sunk: Sequence[tuple[Look, Mark]]) -> list[list[tuple[Look, Mark, float]]]:
        """Deals the marks of the strip out to lines in which their names do not overlap."""
        rows: list[list[tuple[Look, Mark, float]]] = []
        ends: list[float] = []
        for look, mark in sorted(sunk, key=lambda each: each[1].x):
            x, _ = self._place(mark.x, self._floor)
            width = 16 + width_of(_valued(mark))
            left = min(x - 6, self.frame.right + 10 - width)
            number = next((k for k, end in enumerate(ends) if end <= left), len(rows))
            if number == len(rows):
                rows.append([])
                ends.append(0.0)
            rows[number].append((look, mark, left))
            ends[number] = left + width + 4
        return rows


def floor_of(values: Sequence[float], highest: float | None = None, *, depth: float = 0.0) -> float:
    """Finds the lowest value that a panel shows in its place: about four times as far down as half of the marks are.

    Args:
        values: of all marks.
        highest: from where it is counted (default: the highest value).
        depth: how far down what is not cut off may be, at least (default: 1).
    """
    if not values:
        return 0.0
    top = max(values) if highest is None else highest
    wanted = max(depth, 4 * (top - statistics.median(values)))
    shown = next((round_depth for round_depth in _DEPTHS if round_depth >= wanted), wanted)
    # What is hardly lower is not cut off.
    return min((value for value in values if value >= top - 1.5 * shown), default=top)


def ratios(low: float, high: float) -> Iterator[tuple[float, bool]]:
    """Lists round ratios between two, and whether the number is written: every second and fifth one if it is near."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    near = high / low < 100
    for tick in (factor * 10.0**power for power in powers for factor in (1, 2, 5)):
        if low <= tick <= high:
            yield tick, near or math.isclose(math.log10(tick), round(math.log10(tick)))


def _seen(points: Sequence[tuple[float, float]], floor: float) -> Iterable[list[tuple[float, float]]]:
    """Cuts a line into the parts that are not below the floor."""
    part: list[tuple[float, float]] = []
    before: tuple[float, float] | None = None
    for point in points:
        if before is not None and (before[1] < floor) != (point[1] < floor):
            share = (floor - before[1]) / (point[1] - before[1])
            part.append((before[0] + share * (point[0] - before[0]), floor))
        if point[1] >= floor:
            part.append(point)
        elif part:
            yield part
            part = []
        before = point
    if part:
        yield part


def _sunk(look: Look, mark: Mark, left: float, y: float) -> Iterator[str]:
    inside = "none" if look.hollow else look.colour
    path = f"M{left + 1:.1f},{y - 4:.1f}h10l-5,8z"
    yield f'<path d="{path}" fill="{inside}" stroke="{look.colour}"/>'
    yield f'<text x="{left + 15:.1f}" y="{y + 3.5:.1f}" class="l n" font-size="10">{escape(_valued(mark))}</text>'


def _number(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="s" text-anchor="{anchor}" font-size="11">{text}</text>'


def _valued(mark: Mark) -> str:
    value = f"{mark.y:.1f}"
    return f"{mark.name} {value}" if mark.name else value


def _written(name: str, box: Box, x: float, y: float) -> Iterator[str]:
    near_x, near_y = min(max(x, box.left), box.right), min(max(y, box.top), box.bottom)
    if math.hypot(near_x - x, near_y - y) > 9:
        yield f'<path d="M{x:.1f},{y:.1f} L{near_x:.1f},{near_y:.1f}" class="i"/>'
    place = f'x="{(box.left + box.right) / 2:.1f}" y="{box.bottom - 2:.1f}" text-anchor="middle"'
    ground = 'stroke-width="3" paint-order="stroke" stroke-linejoin="round"'
    yield f'<text {place} class="l h n" font-size="10" {ground}>{escape(name)}</text>'
