"""Arithmetic of intervals of time: what is covered by one, by both, or by the first alone.

Every function takes intervals in any order, overlapping or not, and returns them in order and apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Interval: TypeAlias = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Joins what overlaps or touches, and leaves out what takes no time."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif end > start:
            joined.append((start, end))
    return joined


def common(some: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """Finds what both cover."""
    left, right = union(some), union(others)
    found, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            found.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found


def without(some: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """Finds what the first cover and the second do not."""
    edge = float("inf")
    gaps, at = [], -edge
    for start, end in union(others):
        gaps.append((at, start))
        at = end
    return common(some, [*gaps, (at, edge)])


def length(intervals: Iterable[Interval]) -> float:
    """Adds up how long they are, what overlaps counted once."""
    return sum(end - start for start, end in union(intervals))
