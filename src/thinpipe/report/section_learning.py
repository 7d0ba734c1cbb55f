"""The section of a page that draws how runs learned: losses over steps, and what was reached after each epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thinpipe.report.curves import Chart, Curve, curve_chart
from thinpipe.report.entry import Entry
from thinpipe.report.markup import Markup
from thinpipe.report.page_parts import charts, figure, legend, section
from thinpipe.report.thin import Point
from thinpipe.report.units import percent_text, short_text
from thinpipe.train.log import EvaluationLine


def learning_section(entries: Sequence[Entry]) -> Markup | None:
    """Draws all curves that there are; None where no step was taken."""
    found = (
        _loss(entries),
        _tested(entries, "Test accuracy", lambda line: line.accuracy, percent_text, "{:.2%}".format, zero=False),
        _tested(entries, "Test loss", lambda line: line.loss, short_text, "{:.4f}".format, zero=True),
        _tested(entries, "Matthews' correlation", lambda line: line.mcc, short_text, "{:.4f}".format, zero=False),
    )
    figures = [drawn for drawn in found if drawn is not None]
    about = "How the loss fell, and what was reached after each epoch."
    return section("learning", "Learning", about, legend(entries), charts(figures)) if figures else None


def _loss(entries: Sequence[Entry]) -> Markup | None:
    chart = Chart(name="loss", title="Training loss over steps", across="step", say=short_text, tell="{:.4f}".format)
    drawn = curve_chart(
        chart, [_curve(entry, [(line.step, line.loss) for line in entry.run.steps]) for entry in entries]
    )
    about = "of each batch; neighbours are averaged where there are too many to draw"
    return None if drawn is None else figure("Training loss", about, drawn)


def _tested(
    entries: Sequence[Entry],
    title: str,
    value: Callable[[EvaluationLine], float | None],
    say: Callable[[float], str],
    tell: Callable[[float], str],
    *,
    zero: bool,
) -> Markup | None:
    """Draws something over the epochs.

    Args:
        entries: the runs.
        title: what it is.
        value: finds it in a line of the log.
        say: writes it beside the axis.
        tell: writes it where a reader points.
        zero: whether the axis begins at 0.
    """
    name = title.lower().replace(" ", "-").replace("'", "")
    over = f"{title} over epochs"
    chart = Chart(name=name, title=over, across="epoch", say=say, tell=tell, zero=zero, whole=True)
    curves = []
    for entry in entries:
        values = ((line.epoch, value(line)) for line in entry.run.evaluations)
        curves.append(_curve(entry, [(epoch, found) for epoch, found in values if found is not None]))
    drawn = curve_chart(chart, curves)
    return None if drawn is None else figure(title, "after each epoch, on the whole test set", drawn)


def _curve(entry: Entry, points: Sequence[Point]) -> Curve:
    return Curve(entry.label, entry.number, points, run=entry.number)
