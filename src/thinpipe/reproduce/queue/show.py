"""Shows a queue: what is done, begun and to do; and, while it runs, how far each training is and how fast."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table as Grid

from thinpipe.finite import number_text
from thinpipe.reproduce.queue.child import Child
from thinpipe.reproduce.queue.order import Item, Measurement
from thinpipe.reproduce.queue.place import Standing, State
from thinpipe.train.pace import Recent
from thinpipe.train.progress import is_live

_EVERY = 30.0
"""Seconds between two lines, where there is no terminal."""


def show_queue(console: Console, standings: Mapping[Item, Standing], per_epoch: Mapping[str, float]) -> None:
    """Prints a table of all items, and how many there are of each kind.

    Args:
        console: where.
        standings: what is known of each.
        per_epoch: seconds of an epoch by the names of tables, as far as they are known.
    """
    grid = Grid("", "what", "state", "about", title="Queue")
    reasons = {
        why: number for number, why in enumerate(dict.fromkeys(each.why for each in standings.values() if each.why), 1)
    }
    for number, (item, found) in enumerate(standings.items(), 1):
        noted = f" ({reasons[found.why]})" if found.why else ""
        left = duration_text(seconds_left(item, found, per_epoch))
        grid.add_row(str(number), escape(str(item)), escape(state_text(found) + noted), left)
    console.print(grid)
    for why, number in reasons.items():  # once each: a data set that is not there is the reason of many
        console.print(f"({number}) {why}", markup=False, highlight=False)
    counts = Counter(found.state for found in standings.values())
    console.print(", ".join(f"{count} {state}" for state, count in counts.items()), highlight=False)


def state_text(found: Standing) -> str:
    """Says what has become of an item."""
    if found.state is State.BEGUN:
        return f"begun, {found.tested} of {found.epochs} epochs"
    return str(found.state)


def seconds_left(item: Item, found: Standing, per_epoch: Mapping[str, float]) -> float | None:
    """Estimates what is left of an item, from what others of its table took; None where nothing is known or left."""
    if found.state not in (State.TO_DO, State.BEGUN):
        return None
    if isinstance(item, Measurement):
        return 60 * item.minutes
    seconds = per_epoch.get(item.table.name)
    return None if seconds is None else seconds * (found.epochs - found.tested)


def duration_text(seconds: float | None) -> str:
    """Says about how long something takes."""
    if seconds is None:
        return ""
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


class Shown:
    """Shows what runs: a table that is drawn again in a terminal, a line now and then anywhere else.

    Args:
        console: where.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._recent: dict[int, tuple[Recent, float, float]] = {}
        self._said = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True) if is_live(console) else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Prints what has happened."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def running(self, children: Sequence[Child]) -> None:
        """Shows what runs."""
        rates = {child.pid: self._rate(child) for child in children}
        if self._live is not None:
            self._live.update(self._grid(children, rates), refresh=True)
        elif children and time.monotonic() - self._said >= _EVERY:
            self._said = time.monotonic()
            lines = "; ".join(" ".join(filter(None, self._cells(child, rates[child.pid]))) for child in children)
            self.say(f"{sum(rates.values()):,.0f} samples/s: {lines}")

    def _rate(self, child: Child) -> float:
        """Tells the samples a second of a child, lately."""
        now, rows = time.monotonic(), 0.0 if child.tail is None else child.tail.rows
        recent, then, before = self._recent.setdefault(child.pid, (Recent(1), now, rows))
        if now > then:
            recent.count(now - then, rows - before)
            self._recent[child.pid] = recent, now, rows
        return recent.rates()[0]

    def _cells(self, child: Child, rate: float) -> list[str]:
        name, tail = str(child.item), child.tail
        if tail is None or tail.loss is None:
            return [name, "starts" if tail is not None else "", "", ""]
        epoch = f"epoch {tail.epoch + 1}/{child.epochs}"
        return [name, epoch, f"loss {number_text(tail.loss, '.4f')}", f"{rate:,.0f}/s"]

    def _grid(self, children: Sequence[Child], rates: Mapping[int, float]) -> Grid:
        grid = Grid("trains", "epoch", "loss", "samples/s", box=None)
        for child in children:
            grid.add_row(*self._cells(child, rates[child.pid]))
        grid.add_row(f"{len(children)} side by side", "", "", f"{sum(rates.values()):,.0f}/s")
        return grid
