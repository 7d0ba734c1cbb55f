"""The section of a page that draws where the time of a batch goes, on each side."""

from __future__ import annotations

from collections.abc import Sequence

from thinpipe.report.bars import KINDS, Bar, bar_chart
from thinpipe.report.entry import Entry
from thinpipe.report.markup import Markup, element
from thinpipe.report.page_parts import kinds_legend, section

_SIDES = 16
"""So many of a run are drawn; a reader sees the pattern by then."""


def time_section(entries: Sequence[Entry]) -> Markup | None:
    """Draws where the time of a batch goes on each side; None where nobody measured it."""
    bars = [bar for entry in entries for bar in _bars(entry)]
    drawn = bar_chart("time", "Where the time of a batch goes", bars)
    if drawn is None:
        return None
    about = "The upright stroke is the end of the batch, by the clock on the wall."
    if any(side.beside for entry in entries for side in entry.times):
        about += " Encoding and decoding in thin bars run beside the computation, at the same time."
    kinds = kinds_legend(KINDS, "what the bars are")
    return section("time", "Where the time goes", about, kinds, element("figure", drawn))


def _bars(entry: Entry) -> list[Bar]:
    if entry.figures.network is None:
        return []
    whole = entry.figures.network["seconds"]
    return [Bar(entry.label, entry.number, side, whole) for side in entry.times[:_SIDES]]
