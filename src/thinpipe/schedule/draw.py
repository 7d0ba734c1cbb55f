"""Draws a timeline, in the terminal and as SVG: a row for each worker, and one for each link that carried something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from rich.text import Text

from thinpipe.schedule.action import Action, Kind
from thinpipe.schedule.job import Job
from thinpipe.schedule.simulate import Span, Timeline

_TERMINAL = {
    Kind.FORWARD: "white on blue",
    Kind.RECOMPUTE: "black on white",
    Kind.BACKWARD: "black on dark_orange",
    Kind.INPUT: "black on dark_orange",
    Kind.WEIGHT: "white on green4",
}
_COLOURS = {
    Kind.FORWARD: "#4c78a8",
    Kind.RECOMPUTE: "#9ecae9",
    Kind.BACKWARD: "#f58518",
    Kind.INPUT: "#f58518",
    Kind.WEIGHT: "#54a24b",
}
_STYLE = "<style>.l{fill:#333}.i{stroke:#ccc}@media (prefers-color-scheme: dark){.l{fill:#ddd}.i{stroke:#555}}</style>"
_LEFT, _TOP, _ROW, _WIDTH = 90, 40, 26, 900


def label(job: Job, action: Action) -> str:
    """Names an action in a worker's row; the stage is left out where the worker has but one."""
    alone = job.workers.count(job.worker(action)) == 1
    return f"{action.kind.value}{action.micro}" if alone else str(action)


def in_terminal(job: Job, timeline: Timeline, width: int) -> list[Text]:
    """Draws a line for each worker.

    Args:
        job: what was done.
        timeline: when.
        width: of a line, in characters; what does not fit is made narrower, and loses its label.
    """
    spans = [span for row in timeline.workers for span in row]
    shortest = min((span.end - span.start for span in spans if span.end > span.start), default=1.0)
    longest = max((len(label(job, span.action)) for span in spans), default=1)
    scale = min((longest + 1) / shortest, (width - 12) / (timeline.length or 1))
    return [_line(job, f"worker {worker}", row, scale) for worker, row in enumerate(timeline.workers)]


def _line(job: Job, name: str, spans: Sequence[Span], scale: float) -> Text:
    line = Text(f"{name:<10} ", no_wrap=True)
    at = 0
    for span in spans:
        start, end = round(span.start * scale), round(span.end * scale)
        line.append("·" * (start - at), style="dim")
        text = label(job, span.action)
        cells = end - start
        shown = text if len(text) < cells else ""
        line.append(f"{shown:<{max(0, cells - 1)}}" + " " * (cells > 0), style=_TERMINAL[span.action.kind])
        at = end
    return line


def as_svg(job: Job, timeline: Timeline, title: str) -> str:
    """Draws workers and links, with a title and a description for those who hear it."""
    rows = [(f"worker {k}", spans) for k, spans in enumerate(timeline.workers)]
    rows += [(f"{a} → {b}", spans) for (a, b), spans in sorted(timeline.links.items()) if _carried(spans)]
    scale = (_WIDTH - _LEFT - 20) / (timeline.length or 1)
    height = _TOP + _ROW * len(rows) + 10
    said = f"{timeline.bubble:.0%} of the workers' time is idle; the step takes {timeline.length:g} units"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
            'font-family="sans-serif" font-size="11">',
            f"<title>{escape(title)}</title><desc>{escape(said)}</desc>",
            _STYLE,
            f'<text x="10" y="20" class="l" font-size="14">{escape(title)}: {escape(said)}</text>',
            *_rows(job, rows, scale),
            "</svg>",
            "",
        ]
    )


def _carried(spans: Sequence[Span]) -> bool:
    return any(span.end > span.start for span in spans)


def _rows(job: Job, rows: Sequence[tuple[str, Sequence[Span]]], scale: float) -> Iterator[str]:
    for k, (name, spans) in enumerate(rows):
        y = _TOP + _ROW * k
        yield f'<text x="{_LEFT - 8}" y="{y + 15}" class="l" text-anchor="end">{escape(name)}</text>'
        yield f'<line x1="{_LEFT}" y1="{y + _ROW - 2}" x2="{_WIDTH - 20}" y2="{y + _ROW - 2}" class="i"/>'
        for span in spans:
            x, width = _LEFT + span.start * scale, (span.end - span.start) * scale
            text = label(job, span.action)
            colour = _COLOURS[span.action.kind]
            yield f'<rect x="{x:.1f}" y="{y}" width="{max(0.5, width - 1):.1f}" height="{_ROW - 4}" fill="{colour}"/>'
            if width > 6.5 * len(text):
                middle = x + width / 2
                yield f'<text x="{middle:.1f}" y="{y + 15}" fill="#fff" text-anchor="middle">{text}</text>'
