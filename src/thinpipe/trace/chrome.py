"""A trace as a file that Perfetto and chrome://tracing open: a process for each rank, a thread for each track.

::

    rank 0                tid   by which the file's events are put in order
      compute              1
      encode               2
      wire out, wire in    3, 13    one thread each: both ways are used at once
      decode               4
      bubble               5    made from the gaps, for the eye; left out when a file is read

Perfetto drops an event that overlaps another of its thread, so spans of a track that do get threads of their own,
numbered from 2.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from thinpipe.errors import TraceError
from thinpipe.trace.merged import Trace
from thinpipe.trace.plain import is_rank, is_time
from thinpipe.trace.span import IN, OUT, TRACKS, Span

_BUBBLE = "bubble"
_ORDER = (*TRACKS, _BUBBLE)
_ABOUT = {"producer": "thinpipe", "format": 1}
_FIELDS: dict[str, Callable[[Any], bool]] = {
    "pid": is_rank,
    "ts": is_time,
    "dur": is_time,
    "name": lambda value: isinstance(value, str),
    "cat": lambda value: value in TRACKS,
    "args": lambda value: isinstance(value, dict),
}


def write_chrome(path: str | os.PathLike[str], trace: Trace) -> Path:
    """Writes a trace. Whoever looks meanwhile sees the old file or the new one, never half of one.

    Args:
        path: of the file; its folder is made if there is none.
        trace: what to write.

    Returns:
        The path of the file.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    uncertainty = {str(rank): seconds * 1e6 for rank, seconds in trace.uncertainty.items()}
    about = json.dumps({**_ABOUT, "clock_uncertainty_us": uncertainty}, allow_nan=False)
    lines = ",\n".join(json.dumps(event, allow_nan=False) for rank in trace.ranks for event in _events(trace, rank))
    half = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        half.write_text(f'{{"displayTimeUnit": "ms", "otherData": {about}, "traceEvents": [\n{lines}\n]}}\n', "utf-8")
        os.replace(half, target)  # noqa: PTH105
    finally:
        half.unlink(missing_ok=True)
    return target


def _events(trace: Trace, rank: int) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", rank, 0, name=f"rank {rank}")
    yield _meta("process_sort_index", rank, 0, sort_index=rank)
    for position, track in enumerate(_ORDER):
        for number, (name, spans) in enumerate(_threads(trace, rank, track)):
            tid = 1 + position + 10 * number
            yield _meta("thread_name", rank, tid, name=name)
            yield _meta("thread_sort_index", rank, tid, sort_index=1000 * position + number)
            yield from (_complete(span, track, tid) for span in spans)


def _meta(what: str, rank: int, tid: int, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": tid, "args": args}


def _complete(span: Span, track: str, tid: int) -> dict[str, Any]:
    # Both ends are rounded, not the duration: neighbours that touch must not come to overlap.
    start, end = round(span.start * 1e9), round(span.end * 1e9)
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    what = {"ph": "X", "cat": track, "name": span.name, "pid": span.rank, "tid": tid}
    return {**what, **times, "args": dict(span.details)}


def _threads(trace: Trace, rank: int, track: str) -> Iterator[tuple[str, list[Span]]]:
    """Names the threads of a track, with spans that do not overlap."""
    spans = trace.of_rank(rank, track)
    if track == _BUBBLE:
        # A bubble is no span that anybody recorded; it borrows the form of one.
        spans = [Span(rank, "compute", _BUBBLE, start, end) for start, end in trace.bubbles(rank)]
    ways = [(f"{track} {way}", [s for s in spans if s.way == way]) for way in (OUT, IN)]
    for name, group in ways if track == "wire" else [(track, spans)]:
        for number, lane in enumerate(_lanes(group), 1):
            yield name if number == 1 else f"{name} {number}", lane


def _lanes(spans: Iterable[Span]) -> list[list[Span]]:
    lanes: list[list[Span]] = []
    for span in spans:
        free = next((lane for lane in lanes if lane[-1].end <= span.start), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return lanes


def read_chrome(path: str | os.PathLike[str]) -> Trace:
    """Reads a file that ``write_chrome`` wrote.

    Raises:
        TraceError: it is damaged, or of somebody else.
        OSError: it cannot be read at all.
    """
    source = Path(path)
    try:
        data = json.loads(source.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{source} is no JSON, or was cut off: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise TraceError(f"{source} has no list of traceEvents; is it a trace?")
    about = data.get("otherData")
    if not isinstance(about, dict) or any(about.get(key) != value for key, value in _ABOUT.items()):
        raise TraceError(f"{source} was not written by thinpipe, or by another version of it: its otherData is {about}")
    try:
        spans = [_span(number, event) for number, event in enumerate(data["traceEvents"]) if _counts(number, event)]
        return Trace.of(spans, _uncertainty(about.get("clock_uncertainty_us")))
    except TraceError as error:
        raise TraceError(f"{source}: {error}") from error


def _counts(number: int, event: Any) -> bool:
    if not isinstance(event, dict) or not isinstance(event.get("ph"), str):
        raise TraceError(f"event {number} is no event: {str(event)[:60]}")
    return event["ph"] == "X" and event.get("cat") != _BUBBLE


def _span(number: int, event: dict[str, Any]) -> Span:
    for key, fits in _FIELDS.items():
        if not fits(event.get(key)):
            raise TraceError(f"event {number} has {key}={str(event.get(key))[:60]}, which it cannot have")
    # In whole nanoseconds, so that spans which touched still do.
    start = round(event["ts"] * 1000)
    end = start + round(event["dur"] * 1000)
    return Span(event["pid"], event["cat"], event["name"], start / 1e9, end / 1e9, event["args"])


def _uncertainty(data: Any) -> dict[int, float]:
    if not isinstance(data, dict) or not all(key.isdecimal() and is_time(value) for key, value in data.items()):
        raise TraceError(f"clock_uncertainty_us is a number for each rank, got {str(data)[:60]}")
    return {int(rank): value / 1e6 for rank, value in data.items()}
