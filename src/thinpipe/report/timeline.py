"""One step of a traced run as lanes: for each side what it computes, and beneath what its codecs and wires do then.

::

    client   |F0|                    |F2|B2|              |B0|
    encode      |F0|                       |B2|
    wire           |====F0====|               |====B2====|
    server                       |F1|                    |B1|
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thinpipe.report.drawing import FULL, across, at_widths, breadth, shortened, svg, text
from thinpipe.report.markup import Markup, element
from thinpipe.report.scale import Linear
from thinpipe.report.units import bytes_text
from thinpipe.schedule.action import Action, Kind
from thinpipe.trace.merged import Trace
from thinpipe.trace.span import IN, OUT, Span

KINDS = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recomputing",
    "weight": "gradient of weights",
    "other": "other computation",
    "encode": "encoding",
    "wire": "on the wire",
    "decode": "decoding",
}
"""The classes of the style sheet, and what they stand for."""

_OF_ACTION = {
    Kind.FORWARD: "forward",
    Kind.RECOMPUTE: "recompute",
    Kind.BACKWARD: "backward",
    Kind.INPUT: "backward",
    Kind.WEIGHT: "weight",
}
_RECENT = 9
_RANKS = 8
"""So many are drawn; a reader sees the pattern by then."""

_TALL, _LOW, _GAP, _TOP, _BOTTOM = 22, 9, 12, 8, 26


@dataclass(frozen=True)
class Step:
    """One step of a run.

    Args:
        number: of the step in the trace.
        begins: when, in seconds on the trace's clock.
        seconds: from its first event on any side to its last.
        spans: all that happened in it.
    """

    number: int
    begins: float
    seconds: float
    spans: tuple[Span, ...]

    @property
    def kinds(self) -> set[str]:
        """The kinds of what happened."""
        return {kind_of(span) for span in self.spans}

    @property
    def ranks(self) -> list[int]:
        """The sides that are drawn."""
        return sorted({span.rank for span in self.spans})[:_RANKS]


def typical_step(trace: Trace) -> Step | None:
    """Finds the step of median length among the last that went backward; None where no span names its step.

    Evaluations are in a trace, too, and go forward only.
    """
    steps: dict[int, list[Span]] = {}
    for span in trace.spans:
        if span.step is not None:
            steps.setdefault(span.step, []).append(span)
    trained = [number for number, spans in steps.items() if any(kind_of(span) == "backward" for span in spans)]
    found = [_step(number, steps[number]) for number in sorted(trained or steps)[-_RECENT:]]
    found = [step for step in found if step.seconds > 0]
    return sorted(found, key=lambda step: step.seconds)[len(found) // 2] if found else None


def kind_of(span: Span) -> str:
    """Tells what kind of thing a span is, by the names of ``KINDS``."""
    if span.track != "compute":
        return span.track
    try:
        return _OF_ACTION[Action.parse(str(span.details.get("action", span.name))).kind]
    except ValueError:
        return "other"


def timeline_chart(name: str, title: str, step: Step, ranks: Sequence[str], seconds: float) -> Markup:
    """Draws a step for all widths.

    Args:
        name: by which it differs from all others of the page.
        title: what it is.
        step: what happened.
        ranks: the names of the first ranks; others are called by their numbers.
        seconds: that the breadth stands for, so that steps beneath each other can be compared.
    """
    return at_widths(FULL, lambda size, width: _drawn(name, title, step, ranks, seconds, size, width))


def _step(number: int, spans: list[Span]) -> Step:
    begins, ends = min(span.start for span in spans), max(span.end for span in spans)
    return Step(number, begins, ends - begins, tuple(spans))


@dataclass(frozen=True)
class _Lane:
    name: str
    spans: list[Span]
    top: float
    height: float


def _drawn(name: str, title: str, step: Step, ranks: Sequence[str], seconds: float, size: str, width: int) -> Markup:
    left = 70 if width < 400 else 96
    x = Linear(0.0, 1e3 * seconds, left, width - 18)
    lanes = list(_lanes(step, ranks))
    bottom = lanes[-1].top + lanes[-1].height + 8
    parts = [
        *(element("path", d=f"M{x(tick):.1f},{_TOP}V{bottom:.1f}", class_="grid") for tick in x.ticks(6)),
        *across(x, bottom=bottom, say=lambda value: f"{value:,.10g}", most=4 if width < 400 else 8),
        text("ms", left - 8, bottom + 17, anchor="end"),
        *(part for lane in lanes for part in _lane(lane, step, x)),
    ]
    return svg(name, size, *parts, width=width, height=bottom + _BOTTOM, title=title, said=_said(step, ranks))


def _lanes(step: Step, ranks: Sequence[str]) -> Iterator[_Lane]:
    top = float(_TOP)
    for rank in step.ranks:
        own = [span for span in step.spans if span.rank == rank]
        wires = [span for span in own if span.track == "wire"]
        both = len({span.way for span in wires}) > 1
        yield _Lane(_name(rank, ranks), [span for span in own if span.track == "compute"], top, _TALL)
        top += _TALL + 3
        for words, spans in (
            ("encode", [span for span in own if span.track == "encode"]),
            ("wire out" if both else "wire", [span for span in wires if span.way == OUT]),
            ("wire in", [span for span in wires if span.way == IN]),
            ("decode", [span for span in own if span.track == "decode"]),
        ):
            if spans:
                yield _Lane(words, spans, top, _LOW)
                top += _LOW + 4
        top += _GAP


def _name(rank: int, ranks: Sequence[str]) -> str:
    return ranks[rank] if rank < len(ranks) else f"rank {rank}"


def _lane(lane: _Lane, step: Step, x: Linear) -> Iterator[Markup]:
    tall = lane.height == _TALL
    words = shortened(lane.name, x.start - 8)
    yield text(words, x.start - 8, lane.top + lane.height / 2 + 4, kind="ink strong" if tall else "small", anchor="end")
    base = lane.top + lane.height
    yield element("path", d=f"M{x.start:.1f},{base + 0.5:.1f}H{x.end:.1f}", class_="grid")
    for group in _groups(lane.spans, x, step.begins):
        first, last = group[0], max(span.end for span in group)
        start, end = x(1e3 * (first.start - step.begins)), x(1e3 * (last - step.begins))
        kind, wide = kind_of(first), max(0.8, end - start - 0.5)
        tip = element("title", _tip(group))
        yield element("rect", tip, x=start, y=lane.top, width=wide, height=lane.height, class_=f"k-{kind}", rx=1.0)
        if tall and len(group) == 1 and wide > breadth(first.name) + 4:
            yield text(first.name, start + wide / 2, lane.top + 15, kind="on", anchor="middle")


def _groups(spans: Sequence[Span], x: Linear, begins: float) -> list[list[Span]]:
    """Puts spans together that begin within the same pixel: no reader could tell them apart."""
    groups: list[list[Span]] = []
    for span in sorted(spans, key=lambda each: each.start):
        at = x(1e3 * (span.start - begins))
        if groups and at - x(1e3 * (groups[-1][0].start - begins)) < 1:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _tip(group: Sequence[Span]) -> str:
    if len(group) > 1:
        took = max(span.end for span in group) - group[0].start
        return f"{len(group)} one after the other, {1e3 * took:,.3g} ms"
    span = group[0]
    size = "" if span.bytes is None else f", {bytes_text(span.bytes)}"
    return f"{KINDS[kind_of(span)]} {span.name}\n{1e3 * (span.end - span.start):,.3g} ms{size}"


def _said(step: Step, ranks: Sequence[str]) -> str:
    told = []
    for rank in step.ranks:
        took: dict[str, float] = {}
        for span in step.spans:
            if span.rank == rank:
                took[kind_of(span)] = took.get(kind_of(span), 0.0) + span.end - span.start
        parts = ", ".join(f"{words} {1e3 * took[kind]:,.3g} ms" for kind, words in KINDS.items() if kind in took)
        told.append(f"{_name(rank, ranks)}: {parts}")
    return f"{1e3 * step.seconds:,.3g} ms from the first event to the last. {'; '.join(told)}."
