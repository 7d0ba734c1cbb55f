"""How each side of a pipeline spends its time, and what goes over the wire: the averages that a panel shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thinpipe.train.log import StepLine
from thinpipe.train.pace import Recent
from thinpipe.train.side_costs import SideCost, SideTimes, sides_of

_WAYS = {"client": ("sent", "received"), "stage": ("forward", "backward"), "rank": ("up", "down")}
"""What the two directions are called, by who is at the ends."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How a side spent its time. Busy, waits and rest add up to 1; with encode and decode, unless these are beside.

    Args:
        name: whose.
        busy: the share of the time in which it computed.
        encode: in which it packed.
        decode: in which it unpacked.
        waits: in which it could do nothing but wait for another side.
        rest: which belongs to no part of the pipeline: samples are loaded, weights moved, the step agreed upon.
        beside: whether it packs and unpacks in other threads, while it computes or waits.
    """

    name: str
    busy: float
    encode: float
    decode: float
    waits: float
    rest: float
    beside: bool


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Bytes a second one way.

    Args:
        name: of the way.
        now: in the last second or so.
        average: since the run was begun here, evaluations left out.
        peak: in the busiest tenth of a second; 0 where nobody measured it.
    """

    name: str
    now: float
    average: float
    peak: float


class Averages:
    """Adds up steps as they come."""

    def __init__(self) -> None:
        self._sides: dict[str, tuple[Recent, bool]] = {}
        self._ways: tuple[str, ...] = ()
        self._now, self._seconds, self._bytes, self._peaks = Recent(2), 0.0, [0, 0], [0.0, 0.0]

    def count(self, line: StepLine) -> None:
        """Adds a step; one whose sides are not known leaves everything as it is."""
        sides = sides_of(line.cost)
        if not sides:
            return
        for side in sides:
            if side.times is not None:
                self._count_times(side.name, side.times, line.seconds)
        self._count_bytes(sides, (line.cost["sent"], line.cost["received"]), line.seconds)

    def _count_times(self, name: str, times: SideTimes, seconds: float) -> None:
        recent, _ = self._sides.setdefault(name, (Recent(4), times.beside))
        recent.count(seconds, times.computed, times.encode, times.decode, times.stalled)

    def _count_bytes(self, sides: Sequence[SideCost], sizes: Sequence[int], seconds: float) -> None:
        self._ways = _WAYS[sides[0].name.split()[0]]
        self._now.count(seconds, *sizes)
        self._seconds += seconds
        self._bytes = [old + new for old, new in zip(self._bytes, sizes, strict=True)]
        highest = (max(side.peak_up for side in sides), max(side.peak_down for side in sides))
        self._peaks = [max(pair) for pair in zip(self._peaks, highest, strict=True)]

    def shares(self) -> list[Shares]:
        """Tells how each side spends its time, as far as it was measured."""
        return [_shares(name, recent.rates(), beside=beside) for name, (recent, beside) in self._sides.items()]

    def rates(self) -> list[Rate]:
        """Tells what goes each way; nothing where nobody counts it."""
        return [
            Rate(name=name, now=now, average=total / self._seconds if self._seconds else 0.0, peak=peak)
            for name, now, total, peak in zip(self._ways, self._now.rates(), self._bytes, self._peaks, strict=False)
        ]


def mean(sides: Sequence[Shares]) -> Shares:
    """Puts all sides together."""
    parts = ("busy", "encode", "decode", "waits", "rest")
    means = {part: sum(getattr(side, part) for side in sides) / len(sides) for part in parts}
    return Shares(name=f"all {len(sides)}", **means, beside=sides[0].beside)


def _shares(name: str, rates: Sequence[float], *, beside: bool) -> Shares:
    busy, encode, decode, waits = rates
    # A server has a clock of its own, which may tell a little more than the client's step.
    whole = max(1.0, busy + waits if beside else sum(rates))
    busy, encode, decode, waits = (rate / whole for rate in rates)
    rest = 1 - busy - waits - (0.0 if beside else encode + decode)
    return Shares(name=name, busy=busy, encode=encode, decode=decode, waits=waits, rest=max(0.0, rest), beside=beside)
