"""Traces: what every rank did and when, recorded, brought onto one clock, written, summed up and drawn."""

from thinpipe.trace.chrome import read_chrome, write_chrome
from thinpipe.trace.clock import SAME, Offset, Sample, estimate, merge
from thinpipe.trace.draw import as_svg
from thinpipe.trace.merged import Trace
from thinpipe.trace.plain import from_json
from thinpipe.trace.record import NO_TRACE, AnyTracer, NoTrace, Open, Tracer
from thinpipe.trace.shares import Shares, Traffic, shares, traffic
from thinpipe.trace.simulated import from_timeline
from thinpipe.trace.span import TRACKS, Detail, Span

__all__ = [
    "NO_TRACE",
    "SAME",
    "TRACKS",
    "AnyTracer",
    "Detail",
    "NoTrace",
    "Offset",
    "Open",
    "Sample",
    "Shares",
    "Span",
    "Trace",
    "Tracer",
    "Traffic",
    "as_svg",
    "estimate",
    "from_json",
    "from_timeline",
    "merge",
    "read_chrome",
    "shares",
    "traffic",
    "write_chrome",
]
