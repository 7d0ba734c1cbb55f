"""One thing a rank did, from a time to a time, on one of its tracks.

::

    compute   |F1.0|F1.1|     |B1.0|      what the schedule's actions took
    encode         |F1.0|                 beside it: codecs at work ...
    wire               |F1.0   |          ... and bytes on their way, out or in
    decode    |B2.0|
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from thinpipe.errors import TraceError

TRACKS = ("compute", "encode", "wire", "decode")
OUT, IN = "out", "in"
Detail: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True)
class Span:
    """Something that happened.

    Args:
        rank: who did it.
        track: compute, encode, wire or decode.
        name: what; an action as ``F1.3`` is drawn in its colour, and of a message it is the action whose result the
            message carries.
        start: when it began, in seconds.
        end: when it was over.
        details: more about it. Some are understood: ``step``, the number of the training step; ``bytes`` and ``peer``,
            the other rank, of a message; ``way``, whether it goes ``out`` (default) or comes ``in``.

    Raises:
        TraceError: it ends before it begins, its track is unknown, or a detail is no plain value.
    """

    rank: int
    track: str
    name: str
    start: float
    end: float
    details: Mapping[str, Detail] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.track not in TRACKS:
            raise TraceError(unknown_track(self.track))
        if not (math.isfinite(self.start) and math.isfinite(self.end) and self.start <= self.end):
            raise TraceError(f"{self.name!r} of rank {self.rank} goes from {self.start} to {self.end} seconds")
        for key, value in self.details.items():
            if not (value is None or isinstance(value, str | int | float)) or value in (math.inf, -math.inf):
                raise TraceError(f"{self.name!r} has {key}={value!r}; details are texts and finite numbers")
            if value != value:  # only NaN differs from itself; JSON has no word for it
                raise TraceError(f"{self.name!r} has {key}=nan; details are texts and finite numbers")

    @property
    def interval(self) -> tuple[float, float]:
        """When it happened."""
        return self.start, self.end

    @property
    def step(self) -> int | None:
        """The training step it belongs to, if that is known."""
        return self._whole("step")

    @property
    def peer(self) -> int | None:
        """The rank at the other end of a message, if that is known."""
        return self._whole("peer")

    @property
    def bytes(self) -> int | None:
        """The size of a message, if that is known."""
        return self._whole("bytes")

    @property
    def way(self) -> str:
        """Whether a message goes out or comes in."""
        return IN if self.details.get("way") == IN else OUT

    def _whole(self, key: str) -> int | None:
        value = self.details.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def unknown_track(track: str) -> str:
    """Says which tracks there are."""
    return f"there is no track {track!r}; there are {', '.join(TRACKS)}"
