r"""Brings the clocks of ranks together: every ``time.perf_counter`` has an origin of its own.

::

    here     t0 ------------------------- t1        the question left at t0, the answer came at t1
                 \                   /
    there          ------ t --------                t was read in between, nobody knows when exactly

If t was read in the middle, the other clock is ahead by ``t - (t0 + t1) / 2``. It may have been read at t0 or at t1 as
well, so that may be wrong by half the round trip, and by no more, however unequal the two ways are. Of several samples
the one of the quickest round trip says most.

Clocks drift by some milliseconds in ten minutes; take new samples where a trace is to be longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from thinpipe.errors import TraceError
from thinpipe.trace.merged import Trace
from thinpipe.trace.span import Span


@dataclass(frozen=True)
class Sample:
    """One question for the time.

    Args:
        asked: when it was asked, by the clock here.
        there: what the clock there said.
        answered: when the answer had come, by the clock here.
    """

    asked: float
    there: float
    answered: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.asked, self.there, self.answered))) or self.answered < self.asked:
            raise TraceError(f"an answer comes after its question, got {self}")


@dataclass(frozen=True)
class Offset:
    """How far another clock is ahead.

    Args:
        seconds: what it shows more than the clock here.
        uncertainty: by how much that may be wrong, up or down.
    """

    seconds: float
    uncertainty: float

    def __neg__(self) -> Offset:
        """Tells how far this clock is ahead of the other."""
        return Offset(-self.seconds, self.uncertainty)


SAME = Offset(0.0, 0.0)
"""The clock of another process of the same machine (on Linux, macOS and Windows)."""


def estimate(samples: Iterable[Sample | tuple[float, float, float]]) -> Offset:
    """Estimates how far the clock there is ahead of the one here.

    Args:
        samples: several, one after the other; more of them find a quicker round trip, and so less uncertainty.

    Raises:
        TraceError: there are none, or an answer came before its question.
    """
    known = [sample if isinstance(sample, Sample) else Sample(*sample) for sample in samples]
    if not known:
        raise TraceError("an offset of clocks is estimated from one sample at least, got none")
    best = min(known, key=lambda sample: sample.answered - sample.asked)
    half = (best.answered - best.asked) / 2
    return Offset(best.there - (best.asked + half), half)


def merge(spans: Iterable[Span], offsets: Mapping[int, Offset]) -> Trace:
    """Puts the spans of all ranks on the clock of rank 0.

    Args:
        spans: of all ranks, each by its own clock.
        offsets: for each other rank how far its clock is ahead of rank 0's: what rank 0 estimated by asking it, or the
            negative of what it estimated by asking rank 0; ``SAME`` for processes of one machine.

    Raises:
        TraceError: there are no spans, or a rank without an offset.
    """
    known = {0: SAME, **offsets}
    moved = []
    for span in spans:
        if span.rank not in known:
            raise TraceError(f"the clock of rank {span.rank} is unknown; offsets are given for {sorted(offsets)}")
        ahead = known[span.rank].seconds
        moved.append(replace(span, start=span.start - ahead, end=span.end - ahead))
    return Trace.of(moved, {rank: offset.uncertainty for rank, offset in known.items() if offset.uncertainty > 0})
