"""Curves in a terminal: each character is two columns and four rows of dots.

::

    0.98 ┤⠀⠀⠀⠀⣀⡠⠤⠒⠉
         │⠀⡠⠔⠉
    0.12 ┤⠊
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_EMPTY = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a character's dots, by row and column."""


def plot(values: Sequence[float], *, width: int = 60, height: int = 6) -> list[str]:
    """Draws a curve, with its highest and lowest value at the left.

    Args:
        values: at equal distances; those that are not finite are left out. Many are averaged.
        width: characters of the curve.
        height: lines.

    Returns:
        The lines; none if there is nothing to draw.
    """
    columns = _columns([value for value in values if math.isfinite(value)], 2 * width)
    if not columns:
        return []
    low, high = min(columns), max(columns)
    rows = 4 * height
    dots = [round((rows - 1) * (high - value) / (high - low)) if high > low else rows // 2 for value in columns]
    canvas = [[_EMPTY] * width for _ in range(height)]
    for x, y in enumerate(dots):
        # Down or up to the next dot, so that a steep curve has no holes.
        neighbour = dots[x - 1] if x else y
        for row in range(min(y, neighbour + (y > neighbour)), max(y, neighbour - (y < neighbour)) + 1):
            canvas[row // 4][x // 2] |= _DOTS[row % 4][x % 2]
    labels = {0: f"{high:.4g}", height - 1: f"{low:.4g}"}
    margin = max(map(len, labels.values()))
    return [
        f"{labels.get(k, ''):>{margin}} {'┤' if k in labels else '│'}{''.join(map(chr, line))}"
        for k, line in enumerate(canvas)
    ]


def _columns(values: list[float], count: int) -> list[float]:
    """Makes a value for each column: means of many values, or points on the lines between few."""
    if len(values) > count:
        ends = [x * len(values) // count for x in range(count + 1)]
        return [sum(values[first:last]) / (last - first) for first, last in pairwise(ends)]
    columns = []
    for x in range(count if values else 0):
        place = x * (len(values) - 1) / (count - 1)
        before = min(int(place), max(0, len(values) - 2))
        after = min(before + 1, len(values) - 1)
        columns.append(values[before] + (place - before) * (values[after] - values[before]))
    return columns
