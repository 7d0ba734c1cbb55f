"""Few points for many: a curve of a hundred thousand steps is drawn with as many as a reader can see."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

Point = tuple[float, float]


def thinned(points: Sequence[Point], most: int, *, of: Callable[[Sequence[float]], float] = fmean) -> list[Point]:
    """Puts neighbours together until there are no more than so many points.

    Args:
        points: in order; those that are not finite are left out.
        most: how many are wanted at most.
        of: makes one value of several (default: their mean; ``max`` keeps peaks).
    """
    known = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(known) <= most:
        return known
    ends = [k * len(known) // most for k in range(most + 1)]
    groups = [known[first:last] for first, last in pairwise(ends)]
    return [(fmean(x for x, _ in group), of([y for _, y in group])) for group in groups]
