"""A simulated timeline as a trace, so that what was expected and what was measured are shown by the same means."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from thinpipe.schedule.job import Job
from thinpipe.schedule.simulate import Timeline, Times
from thinpipe.trace.merged import Trace
from thinpipe.trace.span import IN, OUT, Detail, Span


def from_timeline(
    job: Job, timeline: Timeline, unit: float = 1e-3, *, times: Times | None = None, step: int = 0
) -> Trace:
    """Turns a timeline into a trace of one step.

    Args:
        job: what was simulated.
        timeline: when everything happened.
        unit: the seconds of a unit of the timeline's time (default: a millisecond).
        times: what it was simulated with; adds codecs, which the timeline leaves out (default: they take no time).
        step: the number of the step (default: 0).
    """
    return Trace.of(_spans(job, timeline, unit, times or Times(), {"step": step}))


def _spans(job: Job, timeline: Timeline, unit: float, times: Times, step: dict[str, Detail]) -> Iterator[Span]:
    computed = {span.action: span for span in chain(*timeline.workers)}
    for action, span in computed.items():
        yield Span(job.worker(action), "compute", str(action), span.start * unit, span.end * unit, step)
    for (source, target), messages in timeline.links.items():
        for message in messages:
            name, made = str(message.action), computed[message.action].end
            start, end = message.start * unit, message.end * unit
            if times.encode:
                yield Span(source, "encode", name, made * unit, (made + times.encode) * unit, step)
            if end > start:
                yield Span(source, "wire", name, start, end, {**step, "peer": target, "way": OUT})
                yield Span(target, "wire", name, start, end, {**step, "peer": source, "way": IN})
            if times.decode:
                yield Span(target, "decode", name, end, end + times.decode * unit, step)
