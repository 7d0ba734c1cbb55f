"""The section of a page that draws one step of each run that was traced."""

from __future__ import annotations

from collections.abc import Sequence

from thinpipe.report.entry import Entry
from thinpipe.report.markup import Markup
from thinpipe.report.page_parts import figure, kinds_legend, section
from thinpipe.report.timeline import KINDS, timeline_chart, typical_step
from thinpipe.train.way import Way

_COMPARABLE = 15
"""Steps that differ by no more are drawn to the same scale."""


def step_section(entries: Sequence[Entry]) -> Markup | None:
    """Draws one step of each traced run; None where there is no trace."""
    traced = [(entry, step) for entry in entries if entry.trace and (step := typical_step(entry.trace))]
    if not traced:
        return None
    lengths = [step.seconds for _, step in traced]
    same = max(lengths) <= _COMPARABLE * min(lengths)
    figures = []
    for entry, step in traced:
        ranks = ("client", "server") if entry.settings.way is Way.CONNECTED else ()
        title = f"{entry.label}: {1e3 * step.seconds:,.1f} ms"
        about = f"step {step.number} of the trace, of median length among the last"
        if len(step.ranks) < len({span.rank for span in step.spans}):
            about += f"; the first {len(step.ranks)} ranks"
        long = max(lengths) if same else step.seconds
        drawn = timeline_chart(f"step-{entry.number}", f"One step of {entry.label}", step, ranks, long)
        figures.append(figure(title, about, drawn))
    kinds = set().union(*(step.kinds for _, step in traced))
    shown = kinds_legend([(kind, words) for kind, words in KINDS.items() if kind in kinds], "what the boxes are")
    about = "When each side computed, and what its codecs and wires did meanwhile, on one clock."
    if len(traced) > 1:
        about += " All steps have the same scale." if same else " Each step has its own scale."
    return section("step", "One step", about, shown, *figures)
