"""A trace: the spans of all ranks on one clock, which begins at 0 with the first of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from thinpipe.errors import TraceError
from thinpipe.trace.intervals import Interval, common, union, without
from thinpipe.trace.span import Span


@dataclass(frozen=True)
class Trace:
    """What all ranks did.

    Args:
        spans: in order of their beginnings, the first at 0; ``Trace.of`` makes them so.
        uncertainty: by how many seconds the clock of each rank may be off from that of rank 0 (default: not at all).
    """

    spans: tuple[Span, ...]
    uncertainty: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, spans: Iterable[Span], uncertainty: Mapping[int, float] | None = None) -> Trace:
        """Brings spans in order and the first of them to 0.

        Raises:
            TraceError: there are none.
        """
        ordered = sorted(spans, key=lambda span: (span.start, span.rank))
        if not ordered:
            raise TraceError("a trace has one span at least, got none; was anything recorded?")
        first = ordered[0].start
        moved = (replace(span, start=span.start - first, end=span.end - first) for span in ordered)
        return cls(tuple(moved), dict(uncertainty or {}))

    @cached_property
    def length(self) -> float:
        """From the first event to the last, in seconds."""
        return max(span.end for span in self.spans)

    @cached_property
    def ranks(self) -> list[int]:
        """Those that did something."""
        return sorted({span.rank for span in self.spans})

    @cached_property
    def steps(self) -> list[int]:
        """The training steps that spans name, in order; empty where none does."""
        return sorted({span.step for span in self.spans if span.step is not None})

    @cached_property
    def _tracks(self) -> dict[tuple[int, str], list[Span]]:
        tracks: dict[tuple[int, str], list[Span]] = {}
        for span in self.spans:
            tracks.setdefault((span.rank, span.track), []).append(span)
        return tracks

    def of_rank(self, rank: int, track: str) -> list[Span]:
        """Lists what a rank did on a track, in order."""
        return self._tracks.get((rank, track), [])

    def last_steps(self, count: int) -> Interval:
        """Finds the time of the last steps; the first ones warm up, and tell less.

        Raises:
            TraceError: no span names its step.
        """
        if not self.steps:
            raise TraceError("no span of this trace names its step; choose a window by its times instead")
        chosen = set(self.steps[-count:])
        spans = [span for span in self.spans if span.step in chosen]
        return min(span.start for span in spans), max(span.end for span in spans)

    @cached_property
    def at_work(self) -> list[Interval]:
        """When the pipeline is in a step: from the first computation of a step on any rank to the last on any.

        A rank that does not compute then stands still because of the pipeline; between steps it may be loading data
        or stepping an optimizer. Where no computation names its step all of them are taken for one.
        """
        extents: dict[int | None, Interval] = {}
        compute = [span for span in self.spans if span.track == "compute"]
        named = any(span.step is not None for span in compute)
        for span in compute:
            if span.step is not None or not named:
                start, end = extents.get(span.step, span.interval)
                extents[span.step] = min(start, span.start), max(end, span.end)
        return union(extents.values())

    def bubbles(self, rank: int, window: Interval | None = None) -> list[Interval]:
        """Lists when a rank stands still inside a step.

        ::

            rank 0   |F0.0|F0.1|~~~~~~~~~~~~~~~|B0.0|    ~ is a bubble, also where a rank waits for its first
            rank 1   |~~~~|F1.0|F1.1|B1.0|B1.1|~~~~~|      action or for the last ones of others
        """
        busy = [span.interval for span in self.of_rank(rank, "compute")]
        idle = without(self.at_work, busy)
        return idle if window is None else common(idle, [window])
