"""Draws a trace as SVG: for each rank a row of what it computed, and thin ones of its wires and codecs.

The colours are those in which a schedule is drawn, so that what was planned and what happened look alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from thinpipe.errors import TraceError
from thinpipe.schedule.action import Action, Kind
from thinpipe.trace.intervals import Interval
from thinpipe.trace.merged import Trace
from thinpipe.trace.shares import shares
from thinpipe.trace.span import IN, OUT, Span

COLOURS = {
    Kind.FORWARD: "#4c78a8",
    Kind.RECOMPUTE: "#9ecae9",
    Kind.BACKWARD: "#f58518",
    Kind.INPUT: "#f58518",
    Kind.WEIGHT: "#54a24b",
}
_OTHER = "#b279a2"
_STYLE = (
    "<style>.l{fill:#333}.s{fill:#777}.i{stroke:#ccc}.g{stroke:#eee}"
    "@media (prefers-color-scheme: dark){.l{fill:#ddd}.s{fill:#999}.i{stroke:#555}.g{stroke:#333}}</style>"
)
_LEFT, _RIGHT, _TOP, _ROW, _THIN, _GAP, _WIDTH = 100, 20, 56, 26, 11, 8, 900


@dataclass(frozen=True)
class _Row:
    name: str
    spans: list[Span]
    y: float
    height: float


def as_svg(trace: Trace, title: str, window: Interval | None = None) -> str:
    """Draws a trace, with a title and a description for those who hear it.

    Args:
        trace: what happened.
        title: what it is a trace of.
        window: from when to when, in seconds (default: all of it). What is partly inside is drawn as far as it is.

    Raises:
        TraceError: the window is empty.
    """
    start, end = window or (0.0, trace.length)
    if not start < end:
        raise TraceError(f"there is nothing to draw from {1e3 * start:g} to {1e3 * end:g} ms")
    rows = list(_rows(trace, (start, end)))
    bottom = rows[-1].y + rows[-1].height + 6
    said = _said(trace, (start, end))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 10:g}" role="img" '
            'font-family="sans-serif" font-size="11">',
            f"<title>{_text(title)}</title><desc>{_text(said)}</desc>",
            _STYLE,
            f'<text x="10" y="20" class="l" font-size="14">{_text(title)}</text>',
            *_axis((start, end), bottom),
            *(line for row in rows for line in _row(row, (start, end))),
            "</svg>",
            "",
        ]
    )


def _text(words: str) -> str:
    """Writes words for XML, which has no place for control characters."""
    return escape("".join(letter if letter.isprintable() else "?" for letter in words))


def _said(trace: Trace, window: Interval) -> str:
    idle = (f"rank {each.rank} computes {each.compute:.0%} of the time" for each in shares(trace, window))
    return f"{1e3 * window[0]:.4g} to {1e3 * window[1]:.4g} ms: " + ", ".join(idle)


def _rows(trace: Trace, window: Interval) -> Iterator[_Row]:
    """Lays out the rows: computation for every rank, the others where there is something to draw."""
    y: float = _TOP
    for rank in trace.ranks:
        yield _Row(f"rank {rank}", _inside(trace.of_rank(rank, "compute"), window), y, _ROW - 4)
        y += _ROW
        wire = trace.of_rank(rank, "wire")
        for name, spans in (
            ("wire out", [span for span in wire if span.way == OUT]),
            ("wire in", [span for span in wire if span.way == IN]),
            ("encode", trace.of_rank(rank, "encode")),
            ("decode", trace.of_rank(rank, "decode")),
        ):
            if inside := _inside(spans, window):
                yield _Row(name, inside, y, _THIN - 3)
                y += _THIN
        y += _GAP


def _inside(spans: list[Span], window: Interval) -> list[Span]:
    return [span for span in spans if span.end > window[0] and span.start < window[1]]


def _axis(window: Interval, bottom: float) -> Iterator[str]:
    """Draws lines at round milliseconds, about eight of them."""
    start, end = 1e3 * window[0], 1e3 * window[1]
    rough = (end - start) / 8
    power = 10.0 ** math.floor(math.log10(rough))
    distance = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.999)
    yield f'<text x="{_LEFT - 8}" y="{_TOP - 12}" class="s" text-anchor="end">ms</text>'
    for number in range(math.ceil(start / distance), math.floor(end / distance) + 1):
        x = _LEFT + (number * distance - start) / (end - start) * (_WIDTH - _LEFT - _RIGHT)
        yield f'<line x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{bottom:g}" class="g"/>'
        yield f'<text x="{x:.1f}" y="{_TOP - 12}" class="s" text-anchor="middle">{number * distance:.10g}</text>'


def _row(row: _Row, window: Interval) -> Iterator[str]:
    thin = row.height < _THIN
    base = row.y + row.height
    kind, size, line = ("s", ' font-size="9"', "g") if thin else ("l", "", "i")
    middle = row.y + row.height / 2 + (3 if thin else 4)
    yield f'<text x="{_LEFT - 8}" y="{middle:g}" class="{kind}"{size} text-anchor="end">{row.name}</text>'
    yield f'<line x1="{_LEFT}" y1="{base + 1:g}" x2="{_WIDTH - _RIGHT}" y2="{base + 1:g}" class="{line}"/>'
    scale = (_WIDTH - _LEFT - _RIGHT) / (window[1] - window[0])
    actions = {id(span): _action(span) for span in row.spans}
    alone = len({action.stage for action in actions.values() if action}) < 2
    for span in row.spans:
        action = actions[id(span)]
        x = _LEFT + (max(span.start, window[0]) - window[0]) * scale
        width = (min(span.end, window[1]) - max(span.start, window[0])) * scale
        box = f'x="{x:.1f}" y="{row.y:g}" width="{max(0.5, width - 1):.1f}" height="{row.height:g}"'
        took = f"{span.name}: {1e3 * (span.end - span.start):.3g} ms"
        yield f'<rect {box} fill="{COLOURS[action.kind] if action else _OTHER}"><title>{_text(took)}</title></rect>'
        label = f"{action.kind.value}{action.micro}" if action and alone else span.name
        if not thin and width > 6.5 * len(label):
            at = f'x="{x + width / 2:.1f}" y="{row.y + 15:g}"'
            yield f'<text {at} fill="#fff" text-anchor="middle">{_text(label)}</text>'


def _action(span: Span) -> Action | None:
    """Finds the action that a span is about, by its name or its detail of that name."""
    try:
        return Action.parse(str(span.details.get("action", span.name)))
    except ValueError:
        return None
