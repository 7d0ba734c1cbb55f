"""Brings the trace of a server to its client, in words, and writes both sides on one clock."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from thinpipe.trace import AnyTracer, estimate, from_json, merge, write_chrome

_PIECE = 1 << 14
"""Characters of a word."""


def pieces(tracer: AnyTracer) -> Iterator[str]:
    """Cuts what was recorded into words."""
    text = json.dumps(tracer.to_json())
    return (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))


def write_trace(
    path: Path, own: AnyTracer, theirs: Sequence[str], clocks: Sequence[tuple[float, float, float]]
) -> None:
    """Writes a trace of both sides on the client's clock.

    Args:
        path: the file.
        own: what the client recorded.
        theirs: what the server recorded, in pieces.
        clocks: comparisons of the two clocks.
    """
    found = [*from_json(own.to_json()), *(from_json(json.loads("".join(theirs))) if theirs else ())]
    write_chrome(path, merge(found, {1: estimate(clocks)}))
