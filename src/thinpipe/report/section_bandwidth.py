"""The section of a page that draws what crossed the network, over the steps of each run."""

from __future__ import annotations

from collections.abc import Sequence

from thinpipe.remote.cost import StepCost
from thinpipe.report.comparison import common_sides
from thinpipe.report.curves import Chart, Curve, curve_chart
from thinpipe.report.entry import Entry
from thinpipe.report.markup import Markup
from thinpipe.report.page_parts import charts, figure, lines_legend, section
from thinpipe.report.units import rate_text, short_text

_THERE, _BACK, _PEAK = 0, 1, 7
"""The marks of the curves."""

_NEAR = 3


def bandwidth_section(entries: Sequence[Entry]) -> Markup | None:
    """Draws what crossed the network over the steps of each run; None where nothing did."""
    known = [(entry, costs) for entry in entries if (costs := _costs(entry))]
    if not known:
        return None
    # The first batch pays for everything's start.
    rates = {entry.number: _rates(entry, costs[1:] or costs) for entry, costs in known}
    highest = max(value for curves in rates.values() for curve in curves for _, value in curve.points)
    figures = []
    for entry, _ in known:
        # A link that is far from full would press all curves to the ground.
        near = entry.rate is not None and entry.rate / 1e6 <= _NEAR * highest
        limit = (entry.rate / 1e6, f"the link: {entry.link}") if entry.rate is not None and near else None
        chart = Chart(
            name=f"rate-{entry.number}",
            title=f"Bandwidth over the steps of {entry.label}",
            across="step",
            say=short_text,
            tell="{:.2f} Mbit/s".format,
            limit=limit,
            highest=highest,
        )
        drawn = curve_chart(chart, rates[entry.number])
        assert drawn is not None
        figures.append(figure(f"{entry.label}, Mbit/s", _peak(entry), drawn))
    several = "All charts have the same scale. " if len(known) > 1 else ""
    about = f"Bits a second each way, over the time of each step. {several}The first step is left out."
    sides = common_sides([entry for entry, _ in known])
    key = [(_THERE, sides.there), (_BACK, sides.back)]
    if any(len(curves) > 2 for curves in rates.values()):
        key.append((_PEAK, "the busiest 100 ms, either way"))
    return section("bandwidth", "Bandwidth", about, lines_legend(key, "what the lines are"), charts(figures))


def _rates(entry: Entry, costs: Sequence[StepCost]) -> list[Curve]:
    sides = entry.sides

    def curve(label: str, mark: int, values: list[float], *, thin: bool = False) -> Curve:
        points = [(cost.step - 1, 8e-6 * value) for cost, value in zip(costs, values, strict=True)]
        return Curve(label, mark, points, thin=thin, peaks=thin)

    found = [
        curve(sides.there, _THERE, [cost.sent / cost.seconds for cost in costs]),
        curve(sides.back, _BACK, [cost.received / cost.seconds for cost in costs]),
    ]
    if any(cost.peak for cost in costs):
        found.append(curve("peak", _PEAK, [cost.peak for cost in costs], thin=True))
    return found


def _peak(entry: Entry) -> str:
    network = entry.figures.network
    assert network is not None
    said = f"{rate_text(network['bandwidth_over_wall'])} on average, both ways"
    return f"{said}; {rate_text(network['peak'])} one way at the peak" if network["peak"] else said


def _costs(entry: Entry) -> list[StepCost]:
    return [cost for cost in entry.run.costs(entry.run.steps) if cost.seconds > 0]
