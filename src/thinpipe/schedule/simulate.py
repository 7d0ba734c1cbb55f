r"""Plays a schedule with given times, and tells when everything happens.

::

    worker 0   |F0.0|F0.1|............|B0.0|
                    \ encode, wire, decode
    worker 1          ......|F1.0|B1.0|

Codecs and links work beside the workers. A link carries one message at a time in each direction, in the order they are
ready; a stage of the same worker gets what it needs at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from thinpipe.schedule.action import Action, ActionList, Kind
from thinpipe.schedule.job import Job
from thinpipe.schedule.validate import validate


@dataclass(frozen=True)
class Times:
    """How long things take, in any unit.

    Args:
        compute: of each kind of action; a backward in two parts takes as long as in one.
        encode: of a message, before it travels.
        wire: of a message.
        decode: of a message, after it has arrived.
        stages: a factor for each stage (default: all alike).
    """

    compute: Mapping[Kind, float] = field(
        default_factory=lambda: {
            Kind.FORWARD: 1.0,
            Kind.RECOMPUTE: 1.0,
            Kind.BACKWARD: 2.0,
            Kind.INPUT: 1.0,
            Kind.WEIGHT: 1.0,
        }
    )
    encode: float = 0.0
    wire: float = 0.0
    decode: float = 0.0
    stages: tuple[float, ...] = ()

    def of(self, action: Action) -> float:
        """Tells how long an action takes."""
        return self.compute[action.kind] * (self.stages[action.stage] if self.stages else 1.0)


@dataclass(frozen=True)
class Span:
    """Something that happened from a time to a time.

    Args:
        action: what; of a message, the action whose result it carries.
        start: when it began.
        end: when it was over.
    """

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """When everything happened.

    Args:
        workers: what each worker did.
        links: what each link carried, by sender and receiver.
    """

    workers: list[list[Span]]
    links: dict[tuple[int, int], list[Span]]

    @property
    def length(self) -> float:
        """From the beginning to the end."""
        return max((span.end for spans in self.workers for span in spans), default=0.0)

    @property
    def bubble(self) -> float:
        """The share of the workers' time in which they stood still."""
        busy = sum(span.end - span.start for spans in self.workers for span in spans)
        return 1 - busy / (self.length * len(self.workers)) if self.length else 0.0


def simulate(job: Job, lists: Sequence[ActionList], times: Times) -> Timeline:
    """Plays a schedule.

    Raises:
        ScheduleError: it cannot be played to the end.
    """
    there: dict[tuple[Action, int], float] = {}
    free = [0.0] * job.width
    timeline = Timeline([[] for _ in range(job.width)], {})
    receivers = _receivers(job)
    for action in validate(job, lists):
        worker = job.worker(action)
        start = max([free[worker], *(there[need, worker] for need in job.needs(action))])
        end = free[worker] = start + times.of(action)
        timeline.workers[worker].append(Span(action, start, end))
        there[action, worker] = end
        for other in receivers.get(action, ()):
            carried = timeline.links.setdefault((worker, other), [])
            ready = max(end + times.encode, carried[-1].end if carried else 0.0)
            carried.append(Span(action, ready, ready + times.wire))
            there[action, other] = ready + times.wire + times.decode
    return timeline


def _receivers(job: Job) -> dict[Action, list[int]]:
    """Lists which other workers wait for each action."""
    found: dict[Action, list[int]] = {}
    for action in job.actions():
        for need in job.needs(action):
            worker = job.worker(action)
            if worker != job.worker(need) and worker not in found.setdefault(need, []):
                found[need].append(worker)
    return found
