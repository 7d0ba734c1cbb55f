"""A chart of where the time of a batch goes, on each side: computing and waiting, and beside them codecs at work.

::

    client    |######computed######|//////stalled//////|        together the time of the batch, about
              |enc|dec|                                         at the same time as the others
    stage 0   |######computed######|enc|dec|///stalled/|        one thread does all of it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thinpipe.report.drawing import FULL, across, at_widths, shortened, svg, text
from thinpipe.report.markup import Markup, element
from thinpipe.report.scale import Linear
from thinpipe.report.side_means import SideMean
from thinpipe.report.units import time_text

KINDS = (
    ("computed", "computing"),
    ("stalled", "waiting for others"),
    ("encode", "encoding"),
    ("decode", "decoding"),
)
"""The classes of the style sheet, and what they stand for."""

_MAIN, _THIN, _GAP, _HEAD, _TOP, _BOTTOM = 16, 6, 12, 22, 6, 26


@dataclass(frozen=True)
class Bar:
    """What a side did in a batch.

    Args:
        run: the label of its run.
        number: the place of its run.
        side: whose time it is, and what it did.
        whole: seconds of the batch.
    """

    run: str
    number: int
    side: SideMean
    whole: float

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The kinds of time that follow each other in the main bar, and in the thin one beneath."""
        beside = (("computed", "stalled"), ("encode", "decode"))
        return beside if self.side.beside else (("computed", "encode", "decode", "stalled"), ())

    @property
    def longest(self) -> float:
        """Seconds of its longest bar."""
        lengths: list[float] = [sum(getattr(self.side, kind) for kind in row) for row in self.rows]
        return max(self.whole, *lengths)

    @property
    def told(self) -> str:
        """Says it in words."""
        parts = ", ".join(f"{words} {time_text(getattr(self.side, kind))}" for kind, words in KINDS)
        return f"{self.run}, {self.side.name}: {parts}; the batch takes {time_text(self.whole)}"


def bar_chart(name: str, title: str, bars: Sequence[Bar]) -> Markup | None:
    """Draws bars for all widths; None where there are none."""
    return at_widths(FULL, lambda size, width: _drawn(name, title, bars, size, width)) if bars else None


def _drawn(name: str, title: str, bars: Sequence[Bar], size: str, width: int) -> Markup:
    left = 78 if width < 400 else 110
    longest = max(bar.longest for bar in bars)
    groups = list(dict.fromkeys((bar.number, bar.run) for bar in bars))
    height = _TOP + len(groups) * _HEAD + len(bars) * (_MAIN + _THIN + _GAP) + _BOTTOM
    x = Linear.around([1e3 * longest], left, width - 18, zero=True)
    bottom = height - _BOTTOM
    parts = [
        *(element("path", d=f"M{x(tick):.1f},{_TOP}V{bottom}", class_="grid") for tick in x.ticks(6)),
        *across(x, bottom=bottom, say=lambda value: f"{value:,.10g}", most=4 if width < 400 else 8),
        text("ms", left - 8, bottom + 17, anchor="end"),
    ]
    top = float(_TOP)
    for number, run in groups:
        parts.append(text(shortened(run, width - 40), 2, top + 15, kind="ink strong"))
        top += _HEAD
        for bar in (each for each in bars if each.number == number):
            parts += [text(shortened(bar.side.name, left - 10), left - 8, top + 12, anchor="end"), *_bar(bar, x, top)]
            top += _MAIN + _THIN + _GAP
    said = ". ".join(bar.told for bar in bars)
    return svg(name, size, *parts, width=width, height=height, title=title, said=f"{said}.")


def _bar(bar: Bar, x: Linear, top: float) -> Iterator[Markup]:
    for kinds, y, height in zip(bar.rows, (top, top + _MAIN + 2), (_MAIN, _THIN), strict=True):
        start = 0.0
        for kind in kinds:
            took = 1e3 * getattr(bar.side, kind)
            words = dict(KINDS)[kind]
            tip = element("title", f"{bar.run}, {bar.side.name}\n{words}: {time_text(took / 1e3)}")
            box = {"x": x(start), "y": y, "width": max(0.0, x(start + took) - x(start)), "height": float(height)}
            yield element("rect", tip, class_=f"k-{kind}", **box)
            start += took
    whole = x(1e3 * bar.whole)
    yield element("path", d=f"M{whole:.1f},{top - 3:.1f}v{_MAIN + 6}", class_="whole")
