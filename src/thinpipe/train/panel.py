"""A pipeline as it works, in a few lines of a terminal: how each side spends its time, and what goes over the wire.

::

                                █ busy ▓ encode ▒ decode  ░ waits   · rest
    stage 0   ███████████▓▓░░░░··     58%       8%       1%      24%       9%
    stage 1   ███████▒░░░░░░░░░··     38%       0%       2%      51%       9%
    forward     1.2 MB/s now    1.1 MB/s average
    backward    4.7 MB/s now    4.5 MB/s average

A part of a bar is told by its shape; colours only repeat it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from thinpipe.remote.cost import size_text
from thinpipe.train.log import StepLine
from thinpipe.train.panel_shares import Averages, Rate, Shares, mean

_MOST = 8
"""Rows of sides; where there are more, not all are shown."""

_AROUND = 6
"""Lines above and below the sides: the bar, the loss, the names of parts, two ways, and one for the cursor."""

_CELL = 9
_SHORTEST_BAR = 8


@dataclass(frozen=True)
class _Part:
    """A part of a side's time, as it is drawn."""

    name: str
    mark: str
    ascii_mark: str
    style: str

    def head(self, *, plain: bool) -> str:
        return f"{self.ascii_mark if plain else self.mark} {self.name}"


_PARTS = (
    _Part("busy", "█", "#", "green"),
    _Part("encode", "▓", "e", "magenta"),
    _Part("decode", "▒", "d", "cyan"),
    _Part("waits", "░", "-", "yellow"),
    _Part("rest", "·", ".", "dim"),
)
_COLUMNS = (("busy", "encode", "decode", "waits", "rest"), ("busy", "waits", "rest"), ("busy",), ())
"""The numbers beside a bar: as many as leave it some width."""


class Panel:
    """Shows the averages of the last steps; empty as long as nothing is known of any side."""

    def __init__(self) -> None:
        self._averages = Averages()
        # Steps are counted by one thread, and shown by another.
        self._lock = threading.Lock()

    def count(self, line: StepLine) -> None:
        """Adds a step."""
        with self._lock:
            self._averages.count(line)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            sides, rates = self._averages.shares(), self._averages.rates()
        rows = chosen(sides, max(1, min(_MOST, console.height - _AROUND)))
        names = [*(row.name for row in rows), *(rate.name for rate in rates)]
        margin = max(map(len, names), default=0) + 2
        if rows:
            yield from _table(rows, margin, options.max_width, plain=options.ascii_only)
        for rate in rates:
            yield _rate_line(rate, margin, options.max_width)


def chosen(sides: Sequence[Shares], most: int) -> list[Shares]:
    """Chooses the sides that are shown, in their order: of too many the first few, the busiest, and all as one."""
    if len(sides) <= most:
        return list(sides)
    first = (most - 1) // 2
    later = sorted(range(first, len(sides)), key=lambda number: -sides[number].busy)[: most - 1 - first]
    return [*sides[:first], *(sides[number] for number in sorted(later)), mean(sides)]


def cells(shares: Sequence[float], width: int) -> list[int]:
    """Gives each share its cells of a bar, all of them together the whole width."""
    ends = [round(width * sum(shares[: number + 1])) for number in range(len(shares))]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def _table(rows: Sequence[Shares], margin: int, width: int, *, plain: bool) -> Iterator[Text]:
    shown = next(names for names in _COLUMNS if not names or _bar_width(names, margin, width) >= _SHORTEST_BAR)
    bar = max(0, _bar_width(shown, margin, width))
    heads = (part.head(plain=plain).rjust(_CELL) for part in _PARTS if part.name in shown)
    yield _line(Text(" " * (margin + bar) + "".join(heads), style="dim"), width)
    for row in rows:
        line = Text(row.name.ljust(margin))
        line.append_text(_bar(row, bar, plain=plain))
        for name in shown:
            line.append(_share(row, name).rjust(_CELL))
        yield _line(line, width)


def _bar_width(columns: Sequence[str], margin: int, width: int) -> int:
    return width - margin - _CELL * len(columns)


def _bar(row: Shares, width: int, *, plain: bool) -> Text:
    drawn = [part for part in _PARTS if not (row.beside and part.name in ("encode", "decode"))]
    bar = Text()
    for part, size in zip(drawn, cells([getattr(row, part.name) for part in drawn], width), strict=True):
        bar.append((part.ascii_mark if plain else part.mark) * size, style=part.style)
    return bar


def _share(row: Shares, name: str) -> str:
    """Says a share; with a plus, where it is no part of the bar."""
    beside = row.beside and name in ("encode", "decode")
    return f"{'+' if beside else ''}{getattr(row, name):.0%}"


def _rate_line(rate: Rate, margin: int, width: int) -> Text:
    said = [f"{_per_second(rate.now)} now", f"{_per_second(rate.average)} average"]
    if rate.peak:
        said.append(f"{_per_second(rate.peak)} peak")
    # Half a word says nothing: what has no room is left out, the last first.
    fitting = next((n for n in range(len(said), 1, -1) if margin + len("  ".join(said[:n])) <= width), 1)
    return _line(Text(rate.name.ljust(margin) + "  ".join(said[:fitting])), width)


def _per_second(rate: float) -> str:
    return f"{size_text(rate)}/s".rjust(10)


def _line(text: Text, width: int) -> Text:
    text.no_wrap = True
    text.truncate(width, overflow="crop")
    return text
