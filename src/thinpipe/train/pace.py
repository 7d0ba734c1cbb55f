"""How fast a run goes: samples and bytes a second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from thinpipe.train.log import StepLine

_WINDOW = 1.0
_KEPT = 0.9
"""At least this much of all earlier steps, however long one takes."""


def bytes_of(cost: Mapping[str, Any]) -> int:
    """Adds up the bytes of a step's cost, both ways; none where nothing is cut."""
    return int(cost.get("sent", 0)) + int(cost.get("received", 0))


class Recent:
    """Amounts a second, averaged over the last second, or over about ten steps where these take longer.

    Args:
        size: how many amounts are counted.
    """

    def __init__(self, size: int) -> None:
        self._amounts, self._seconds = [0.0] * size, 0.0

    def count(self, seconds: float, *amounts: float) -> None:
        """Adds a step; all earlier ones count less from now on."""
        kept = max(_KEPT, math.exp(-seconds / _WINDOW))
        self._seconds = kept * self._seconds + seconds
        self._amounts = [kept * old + new for old, new in zip(self._amounts, amounts, strict=True)]

    def rates(self) -> list[float]:
        """Tells each amount a second; 0 as long as no time has passed."""
        return [amount / self._seconds if self._seconds else 0.0 for amount in self._amounts]


class Pace:
    """The speeds of the last steps."""

    def __init__(self) -> None:
        self._recent = Recent(2)

    def count(self, line: StepLine) -> None:
        """Adds a step."""
        self._recent.count(line.seconds, line.rows, bytes_of(line.cost))

    def __str__(self) -> str:
        rows, size = self._recent.rates()
        bytes_too = f", {size / 1e6:,.2f} MB/s" if size else ""
        return f"{rows:,.0f} samples/s{bytes_too}" if rows else ""
