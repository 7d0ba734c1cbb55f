"""Scales of charts: where a value lies, and which round values are written beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Scale(Protocol):
    """From values to pixels."""

    @property
    def start(self) -> float:
        """The pixel of the lowest value."""
        ...

    @property
    def end(self) -> float:
        """The pixel of the highest value."""
        ...

    def __call__(self, value: float) -> float:
        """Tells where a value lies."""
        ...

    def ticks(self, most: int) -> list[float]:
        """Lists round values, at most so many."""
        ...


@dataclass(frozen=True)
class Linear:
    """Equal distances for equal differences.

    Args:
        low: the value at ``start``.
        high: the value at ``end``, larger than ``low``.
        start: in pixels.
        end: in pixels.
    """

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(
        cls, values: Iterable[float], start: float, end: float, *, zero: bool = False, share: bool = False
    ) -> Linear:
        """Makes one that has all values, and 0 if ``zero``, with round ends.

        A ``share`` is at most 1, and has an axis of two points in a hundred at least: less than that is noise.
        """
        known = [*values, *([0.0] if zero else [])] or [0.0, 1.0]
        low, high = min(known), max(known)
        if share and high - low < _POINTS:
            high = min(1.0, (low + high + _POINTS) / 2)
            low = high - _POINTS
        if not high > low:
            # One value has a place of its own, in the middle.
            low, high = (0.0, low) if zero and low > 0 else (low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2)
        distance = _distance(low, high, 5)
        return cls(
            math.floor(low / distance + 1e-9) * distance, math.ceil(high / distance - 1e-9) * distance, start, end
        )

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Lists multiples of 1, 2 or 5 times a power of ten."""
        distance = _distance(self.low, self.high, most)
        first, last = math.ceil(self.low / distance - 1e-9), math.floor(self.high / distance + 1e-9)
        return [number * distance for number in range(first, last + 1)]


@dataclass(frozen=True)
class Log:
    """Equal distances for equal quotients; all values are above 0.

    Args:
        low: the value at ``start``.
        high: the value at ``end``, larger than ``low``.
        start: in pixels.
        end: in pixels.
    """

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Iterable[float], start: float, end: float) -> Log:
        """Makes one that has all values, with some room beside the outermost."""
        known = list(values)
        room = max(1.25, (max(known) / min(known)) ** 0.08)
        return cls(min(known) / room, max(known) * room, start, end)

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self, most: int) -> list[float]:
        """Lists powers of ten, with their multiples by 2 and 5 where there is room for them."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for factors, every in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 3), ((1,), 6)):
            found = [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]
            found = [value for value in found if self.low <= value <= self.high]
            if len(found) <= most:
                break
        return found


_POINTS = 0.02


def _distance(low: float, high: float, most: int) -> float:
    """Finds the round distance at which there are no more than so many ticks."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.999)
