"""The section of a page that draws runs as points: how good and how fast they are against how much they send."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thinpipe.report.entry import Entry
from thinpipe.report.markup import Markup
from thinpipe.report.page_parts import charts, figure, section
from thinpipe.report.points import Spot, point_chart
from thinpipe.report.units import bytes_text, percent_text, short_text, time_text


def quality_section(entries: Sequence[Entry]) -> Markup | None:
    """Draws how good and how fast runs are against how much they send; None unless several can be compared."""
    if len(entries) < 2:
        return None
    figures = [
        figure(title, about, drawn)
        for name, title, about, form, say in (
            ("accuracy", "Accuracy", "on the whole test set; up is better", "{:.2%}".format, percent_text),
            ("mcc", "Matthews' correlation", "on the whole test set; up is better", "{:.4f}".format, short_text),
            (
                "seconds",
                "Time per batch, ms",
                "median; down is better",
                time_text,
                lambda value: short_text(1e3 * value),
            ),
        )
        if (drawn := _points(entries, name, title, form, say)) is not None
    ]
    about = "Runs as points: the further left, the less is sent."
    if not all(entry.bytes for entry in entries):
        about += " A dashed line is a run that sends nothing."
    return section("quality", "Against bytes", about, charts(figures)) if figures else None


def _points(
    entries: Sequence[Entry], name: str, title: str, form: Callable[[float], str], say: Callable[[float], str]
) -> Markup | None:
    spots = []
    for entry in entries:
        value = getattr(entry.figures, name)
        if value is not None:
            told = f"{entry.label}: {form(value)}" + (f" with {bytes_text(entry.bytes)}" if entry.bytes else "")
            spots.append(Spot(entry.label, entry.number, entry.bytes, value, told))
    return point_chart(f"points-{name}", f"{title} against bytes of a batch", spots, say, share=name != "seconds")
