"""Spans as plain data and back, for the way from a rank to the one that writes the file.

::

    {"rank": 1, "spans": [["compute", "F1.3", 12.25, 12.5, {"step": 7}], ...]}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

from thinpipe.errors import TraceError
from thinpipe.trace.span import Span

LONGEST = 1e15
"""Seconds or microseconds beyond this are damage, not times; a rank beyond it is no rank."""


def to_json(rank: int, spans: Iterable[Span]) -> dict[str, Any]:
    """Gives the spans of a rank as lists, dictionaries, texts and numbers."""
    return {"rank": rank, "spans": [[s.track, s.name, s.start, s.end, dict(s.details)] for s in spans]}


def from_json(data: Any) -> list[Span]:
    """Reads what ``to_json`` gave.

    Raises:
        TraceError: it is something else; it may have come from another machine.
    """
    if not isinstance(data, dict) or not is_rank(data.get("rank")) or not isinstance(data.get("spans"), list):
        raise TraceError(f"the spans of a rank are {{'rank': 0, 'spans': [...]}}, got {str(data)[:60]!r}")
    return [_span(data["rank"], number, row) for number, row in enumerate(data["spans"])]


def _span(rank: int, number: int, row: Any) -> Span:
    match row:
        case [str(track), str(name), start, end, dict(details)] if is_time(start) and is_time(end):
            return Span(rank, track, name, start, end, details)
    raise TraceError(f"span {number} of rank {rank} is no [track, name, start, end, details]: {str(row)[:60]!r}")


def is_rank(value: Any) -> TypeGuard[int]:
    """Tells whether a value may be a rank."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LONGEST


def is_time(value: Any) -> TypeGuard[float]:
    """Tells whether a value may be a time."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LONGEST
