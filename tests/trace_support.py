"""Traces that tests look at."""

import time

from thinpipe.schedule import Times, plan, simulate
from thinpipe.trace import SAME, Tracer, from_timeline, merge


def simulated(name="1f1b", stages=3, chunks=4, **times):
    job, lists = plan(name, stages, chunks)
    its = Times(**{"encode": 0.1, "wire": 0.8, "decode": 0.1, **times})
    timeline = simulate(job, lists, its)
    return from_timeline(job, timeline, times=its), timeline


def recorded(steps=3):
    """Two ranks of one process, which sleep instead of computing."""
    tracers = [Tracer(0), Tracer(1)]
    for step in range(steps):
        with tracers[0].span("compute", "F0.0", step=step):
            time.sleep(0.002)
        with tracers[0].span("wire", "F0.0", step=step, peer=1, bytes=1000):
            time.sleep(0.001)
        with tracers[1].span("compute", "F1.0", step=step):
            time.sleep(0.002)
        with tracers[0].span("compute", "optimizer"):
            time.sleep(0.001)
    return merge([span for tracer in tracers for span in tracer.lines()], {1: SAME})
