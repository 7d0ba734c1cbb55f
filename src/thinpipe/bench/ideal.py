"""How fast a pipeline could be at best, from the times of its stages.

A stage ``j`` takes ``f[j]`` for the forward of a micro-batch and ``b[j]`` for its backward; recomputing it takes
another ``f[j]``. With no time lost between stages, three of them, the second twice as large as the others, take three
micro-batches forward and, all but the last recomputed, backward::

    stage 0   F0 F1 F2                         B2 R1       B1 R0       B0
    stage 1      F0─── F1─── F2───       B2─── R1─── B1─── R0─── B0───
    stage 2            F0    F1    F2 B2 R1 B1 R0 B0

**Forward.** The first micro-batch passes all stages, and after it one more leaves the pipeline each time the largest
stage is done with one: ``sum(f) + (m - 1) max(f)``. It is exact: whatever chain of waiting leads from the first action
to the last passes every stage once, and turns ``m - 1`` times to the next micro-batch, each time in some one stage.

**Backward.** The same from the other end, except that a recomputation waits for nobody. Turning to the next micro-batch
costs a stage ``f + b`` if it is recomputed, while the first one's gradient passes at ``b`` a stage:
``sum(b) + (m - 1) max(f + b)``. Where even the first one is recomputed (``always``), all stages do so at once, as soon
as the backward begins: the chain may then begin in any stage ``s``, with ``f[s]``, and goes on through those before it.

The ideal speed-up is the time of the same forwards and backwards one after the other, ``m (sum(f) + sum(b))``, over the
sum of both. Recomputation is work that one device does not have: it lengthens the pipeline and not the one device, so a
pipeline of ``n`` equal stages that recomputes gains at most about ``3/4 n`` where a backward takes two forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from thinpipe.bench.table import Mode


def equal_stages(n: int, m: int) -> float:
    """Returns the ideal speed-up of ``n`` equal stages that recompute nothing."""
    return n * m / (m + n - 1)


def pipeline_time(forward: Sequence[float], backward: Sequence[float], m: int, checkpoint: Mode) -> float:
    """Returns the least time a GPipe pipeline takes for one batch.

    Args:
        forward: the time of each stage for one micro-batch.
        backward: the same, without recomputation.
        m: the number of micro-batches.
        checkpoint: which of them are recomputed.
    """
    again = [0.0] * len(forward) if checkpoint == "never" else forward
    turns = [r + b for r, b in zip(again, backward, strict=True)]
    there = sum(forward) + (m - 1) * max(forward)
    # The way back, for every stage s it may begin in: the backwards and the costliest turn of stages 0 to s.
    ways = zip(accumulate(backward), accumulate(turns, max), strict=True)
    back = [total + (m - 1) * turn for total, turn in ways]
    if checkpoint == "always":
        return there + max(r + way for r, way in zip(again, back, strict=True))
    return there + back[-1]


def partition(forward: Sequence[float], backward: Sequence[float], m: int, checkpoint: Mode) -> float:
    """Returns the ideal speed-up of these stages over one device that computes the same micro-batches in turn."""
    return m * (sum(forward) + sum(backward)) / pipeline_time(forward, backward, m, checkpoint)
