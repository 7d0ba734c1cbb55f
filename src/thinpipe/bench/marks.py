"""The marks of a panel, and how they look in it and in its legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, TypeAlias

from thinpipe.bench.labels import width_of

Shape: TypeAlias = Literal["circle", "square", "diamond"]
_SIZE = 4.0
_HALF, _TIP = _SIZE - 0.4, _SIZE + 1


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a series looks; its marks can be told apart without colours, as far as there are shapes.

    Args:
        colour: of lines and marks.
        shape: of the marks.
        hollow: whether they are empty and their line is dashed, as somebody else's (default: they are not).
    """

    colour: str
    shape: Shape
    hollow: bool = False


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One mark.

    Args:
        name: beside it; empty for none.
        x: the ratio, above 0.
        y: the measure.
        deviation: of the measure (default: it has none).
        matters: whether its name is written even where a line has to lead there (default: only where there is room).
    """

    name: str
    x: float
    y: float
    deviation: float = 0.0
    matters: bool = False


@dataclass(frozen=True, kw_only=True)
class Series:
    """Marks that a line joins, from the least ratio to the greatest.

    Args:
        name: in the legend.
        look: of all of them.
        marks: in any order.
    """

    name: str
    look: Look
    marks: Sequence[Mark]


def shape(look: Look, x: float, y: float) -> str:
    """Draws a mark."""
    inside = f'fill="{look.colour}" stroke="none"'
    if look.hollow:
        inside = f'fill="none" stroke="{look.colour}" stroke-width="1.5"'
    if look.shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_SIZE}" {inside}/>'
    square = f"M{x - _HALF:.1f},{y - _HALF:.1f}h{2 * _HALF:g}v{2 * _HALF:g}h{-2 * _HALF:g}z"
    diamond = f"M{x:.1f},{y - _TIP:.1f}l{_TIP:g},{_TIP:g}l{-_TIP:g},{_TIP:g}l{-_TIP:g},{-_TIP:g}z"
    return f'<path d="{square if look.shape == "square" else diamond}" {inside}/>'


def legend(series: Sequence[tuple[str, Look]], left: float, top: float, right: float) -> tuple[list[str], float]:
    """Writes what the marks mean, in as many lines as it takes; tells where the next line would be.

    Args:
        series: names and looks.
        left: where lines begin.
        top: the first line.
        right: where they end.
    """
    parts: list[str] = []
    x, y = left, top
    for name, look in series:
        width = 18 + 1.15 * width_of(name)
        if x > left and x + width > right:
            x, y = left, y + 18
        parts.append(shape(look, x + 6, y - 4))
        parts.append(f'<text x="{x + 15:.1f}" y="{y:.1f}" class="s" font-size="12">{escape(name)}</text>')
        x += width + 8
    return parts, y + 18


def spoken_of(series: Series) -> str:
    """Says a series in words, for those who hear it."""
    marks = sorted(series.marks, key=lambda mark: -mark.x)
    return f"{series.name}: " + ", ".join(f"{mark.name} {mark.y:.2f} at {mark.x:.3g}".strip() for mark in marks)
