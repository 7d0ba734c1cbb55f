"""The numbers that matter: how long each rank computes and stands still, and what of the wire hides under it.

::

    compute   |####|####|~~~~|####|            compute and bubble and the rest are the whole time
    wire          |=====|====|                 the first seven tenths of the wire are hidden under computation
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from thinpipe.trace.intervals import Interval, common, length
from thinpipe.trace.merged import Trace
from thinpipe.trace.span import OUT, TRACKS, Span


@dataclass(frozen=True)
class Shares:
    """How a rank spent its time. Compute, bubble and rest add up to 1; the others run beside them.

    Args:
        rank: whose.
        compute: the share of the time in which it computed.
        bubble: in which it stood still inside a step.
        rest: between steps.
        encode: in which it encoded something, beside whatever else.
        wire: in which something was on its way, out or in.
        decode: in which it decoded something.
        hidden: the share of the wire's time in which the rank computed; None where nothing was on a wire.
    """

    rank: int
    compute: float
    bubble: float
    rest: float
    encode: float
    wire: float
    decode: float
    hidden: float | None


@dataclass(frozen=True)
class Traffic:
    """What went over a link one way.

    Args:
        source: the rank that sent.
        target: the rank that received.
        messages: how many.
        bytes: of all of them.
        seconds: in which one at least was on its way.
    """

    source: int
    target: int
    messages: int
    bytes: int
    seconds: float

    @property
    def rate(self) -> float | None:
        """Bytes a second while something was on its way; None where that took no time."""
        return self.bytes / self.seconds if self.seconds > 0 else None


def shares(trace: Trace, window: Interval | None = None) -> list[Shares]:
    """Tells how each rank spent its time.

    Args:
        trace: what happened.
        window: from when to when (default: from the first event to the last).
    """
    return [_of_rank(trace, rank, window or (0.0, trace.length)) for rank in trace.ranks]


def _of_rank(trace: Trace, rank: int, window: Interval) -> Shares:
    busy = {track: common([s.interval for s in trace.of_rank(rank, track)], [window]) for track in TRACKS}
    took = (window[1] - window[0]) or 1.0
    compute = length(busy["compute"]) / took
    bubble = length(trace.bubbles(rank, window)) / took
    wire = length(busy["wire"])
    return Shares(
        rank=rank,
        compute=compute,
        bubble=bubble,
        rest=max(0.0, 1 - compute - bubble),
        encode=length(busy["encode"]) / took,
        wire=wire / took,
        decode=length(busy["decode"]) / took,
        hidden=length(common(busy["wire"], busy["compute"])) / wire if wire else None,
    )


def traffic(trace: Trace, window: Interval | None = None) -> list[Traffic]:
    """Adds up what each link carried each way, of messages whose peer and bytes are known.

    A message may have been recorded at both ends. Its sender's word counts; the receiver's is taken for links of which
    the sender recorded nothing.

    Args:
        trace: what happened.
        window: only messages that are wholly inside (default: all).
    """
    sent: dict[tuple[int, int], list[Span]] = defaultdict(list)
    received: dict[tuple[int, int], list[Span]] = defaultdict(list)
    start, end = window or (0.0, trace.length)
    for span in trace.spans:
        if span.track != "wire" or span.peer is None or span.bytes is None or span.start < start or span.end > end:
            continue
        if span.way == OUT:
            sent[span.rank, span.peer].append(span)
        else:
            received[span.peer, span.rank].append(span)
    return [_carried(*link, spans) for link, spans in sorted({**received, **sent}.items())]


def _carried(source: int, target: int, spans: list[Span]) -> Traffic:
    seconds = length(span.interval for span in spans)
    return Traffic(source, target, len(spans), sum(span.bytes or 0 for span in spans), seconds)
