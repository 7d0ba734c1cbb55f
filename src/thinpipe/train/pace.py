"""How fast a run goes: samples and bytes a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thinpipe.train.log import StepLine

_SMOOTHING = 0.9


def bytes_of(cost: Mapping[str, Any]) -> int:
    """Adds up the bytes of a step's cost, both ways; none where nothing is cut."""
    return int(cost.get("sent", 0)) + int(cost.get("received", 0))


class Pace:
    """Speeds, smoothed over about ten steps."""

    def __init__(self) -> None:
        self._rows = self._bytes = self._seconds = 0.0

    def count(self, line: StepLine) -> None:
        """Adds a step."""
        sizes = (line.rows, bytes_of(line.cost), line.seconds)
        self._rows, self._bytes, self._seconds = (
            _SMOOTHING * old + new for old, new in zip((self._rows, self._bytes, self._seconds), sizes, strict=True)
        )

    def __str__(self) -> str:
        if not self._seconds:
            return ""
        bytes_too = f", {self._bytes / self._seconds / 1e6:,.2f} MB/s" if self._bytes else ""
        return f"{self._rows / self._seconds:,.0f} samples/s{bytes_too}"
