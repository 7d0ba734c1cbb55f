r"""``stream``: a schedule for thin links, on which a message takes longer than what is computed for it.

::

    client  F0 F0 F0 F0   F2 B2   F2 B2 B0   F2 B2 B0 ..      U of three stages; numbers are those of stages
    up      A0 A1 g0 A2 g1 A3 g2 g3                           activations all the time, their small gradients between
    server     F1   F1 B1   F1 B1   F1 B1 B1
    down            a0 G0 a1  G1 a2  G2 a3 G3                 and the large gradients come back meanwhile

With ``1f1b`` a worker of two stages sends its next activation only when it has nothing else to do, and with ``gpipe``
everything is sent before anything comes back: either way the two directions of a link take turns. Here the first stage
goes forward at once, the others take turns as in ``1f1b``, and the first stage's backward, for which nobody waits,
comes two micro-batches later than it could. Where the first cut is the larger one, as in a network for images, eight
micro-batches take two thirds of the time of ``gpipe``; where links are fast or cuts alike, about the same.

The price is that of ``gpipe``: the first stage keeps all micro-batches at once.
"""

from __future__ import annotations

from thinpipe.schedule.action import Action, ActionList, Kind
from thinpipe.schedule.job import Job


def stream(job: Job) -> list[ActionList]:
    """Keeps both directions of thin links busy."""
    last = job.stages - 1

    def clock(action: Action) -> tuple[int, bool, int]:
        """Tells when an action is due; whatever it needs is due before it, so that nobody waits in a circle."""
        j, i = action.stage, action.micro
        if action.kind is Kind.FORWARD:
            return (i + j if j else -1, False, i)
        way_back = last - j
        # Between the ends there is no time to lose: a gradient is sent on as soon as it can have come.
        late = way_back - 1 if 0 < j < last else way_back
        return (i + last + late, True, way_back)

    lists: list[ActionList] = [[] for _ in range(job.width)]
    for action in sorted(job.actions(), key=clock):
        lists[job.worker(action)].append(action)
    return lists
