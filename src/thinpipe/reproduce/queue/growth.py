"""How many trainings run side by side: one more as long as all of them together gain from it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

GAIN = 0.05
"""One more is worth it if the samples a second of all grow by this share."""
MOST = 12
"""More than so many are never tried."""


@dataclass
class SideBySide:
    """Decides how many run side by side, by the samples a second that were measured.

    ::

        side by side          1        2        3        4
        samples a second    3,000    5,600    6,900    7,000
                                 +87%     +23%      +1%   too little: four are kept, and there is no fifth

    Args:
        wanted: how many to begin with; more than one where an earlier call found out (default: 1).
        settled: whether that is how many there will be (default: it is found out).
        most: how many there may be.
    """

    wanted: int = 1
    settled: bool = False
    most: int = MOST
    _measured: dict[int, list[float]] = field(default_factory=dict)

    def measured(self, count: int, rate: float) -> None:
        """Is told a rate of so many, of all together, and decides whether to add one."""
        self._measured.setdefault(count, []).append(rate)
        if self.settled or count != self.wanted:
            return
        fewer = self.rates().get(count - 1)
        if fewer is not None and rate < (1 + GAIN) * fewer:
            self.settled = True
            # Those that run are left alone; one that ends is not replaced if it was in the way of the others.
            self.wanted = count if rate >= fewer else count - 1
        elif count == self.most:
            self.settled = True
        else:
            self.wanted = count + 1

    def stay(self, count: int) -> None:
        """Is told that there is no room for more than so many."""
        self.wanted, self.settled = max(1, min(count, self.wanted)), True

    def rates(self) -> dict[int, float]:
        """Tells the samples a second of 1, 2, 3 and so on side by side, as far as they were measured."""
        return {count: statistics.median(rates) for count, rates in sorted(self._measured.items())}

    @property
    def best(self) -> int | None:
        """How many had the most samples a second; None before anything was measured."""
        rates = self.rates()
        return max(rates, key=lambda count: rates[count], default=None)
