"""The schedules by name. Each is a pure function of a job; three stages, four micro-batches, time to the right::

gpipe        0  F F F F . . . . B B B B          all forward, then all backward: every activation is kept at once
             1    F F F F . . B B B B
             2      F F F F B B B B

1f1b         0  F F F . . B F . B . B . B        a stage holds as many micro-batches as there are stages from it on,
             1    F F . B F B F B . B            and goes backward as soon as it can
             2      F B F B F B F B

interleaved  a worker has several stages, dealt out in turn; it fills with one stage what it waits for in another

zb           1f1b with backwards in two parts: the gradient of the input at once, that of the weights where the
             worker would else stand still

stream       for thin links: forward as far as can be while messages travel, so that they travel both ways at once
"""

from __future__ import annotations

from collections.abc import Callable

from thinpipe.errors import ArgumentError, ScheduleError
from thinpipe.schedule.action import Action, ActionList, Kind
from thinpipe.schedule.greedy import Play
from thinpipe.schedule.job import Job, in_turn
from thinpipe.schedule.stream import stream
from thinpipe.schedule.validate import validate
from thinpipe.suggest import instead_of


def gpipe(job: Job) -> list[ActionList]:
    """Takes every micro-batch forward, then every one backward, the last one first."""
    n, m = job.stages, job.micros

    def clock(action: Action) -> tuple[bool, int, int]:
        j, i = action.stage, action.micro
        if action.kind is Kind.FORWARD:
            return (False, i + j, j)
        return (True, (m - 1 - i) + (n - 1 - j), -j)

    lists: list[ActionList] = [[] for _ in range(job.width)]
    for action in sorted(job.actions(), key=clock):
        lists[job.worker(action)].append(action)
    return lists


def one_forward_one_backward(job: Job) -> list[ActionList]:
    """Goes backward as soon as it can, and keeps few micro-batches under way."""
    return Play(job, _backward_first, _room(job), _room(job)).play()


def interleaved(job: Job) -> list[ActionList]:
    """Gives a worker several stages, and takes micro-batches through them in groups as large as there are workers.

    Where stages are dealt out in turn, each worker begins with so many forwards that the first gradient finds it ready,
    and then goes forward and backward in turns (Narayanan et al., 2021). Else it is played, like ``1f1b``.
    """
    if job.workers == in_turn(job.stages, job.width) and job.stages % job.width == 0:
        lists = [_in_turns(job, worker) for worker in range(job.width)]
        try:
            validate(job, lists)
        except ScheduleError:  # a last group that is not full may leave somebody waiting
            pass
        else:
            return lists
    return one_forward_one_backward(job)


def _in_turns(job: Job, worker: int) -> ActionList:
    width, depth = job.width, job.stages // job.width
    groups = [range(first, min(first + width, job.micros)) for first in range(0, job.micros, width)]
    places = [(chunk, i) for group in groups for chunk in range(depth) for i in group]
    forward = [Action(Kind.FORWARD, chunk * width + worker, i) for chunk, i in places]
    backward = [Action(Kind.BACKWARD, (depth - 1 - chunk) * width + worker, i) for chunk, i in places]
    ahead = min(len(forward), 2 * (width - worker - 1) + (depth - 1) * width)
    turns = [action for pair in zip(forward[ahead:], backward, strict=False) for action in pair]
    return forward[:ahead] + turns + backward[len(forward) - ahead :]


def zero_bubble(job: Job) -> list[ActionList]:
    """Splits backwards in two, and does the part that nobody waits for where the worker would else stand still.

    With parts of equal length and as many micro-batches as stages, it reaches the bound for holding no more than ``n``
    of them (Qi et al., 2023: ZB-H1).
    """
    urgency = {Kind.FORWARD: 0, Kind.INPUT: 1, Kind.WEIGHT: 2}
    memory = [job.stages + job.ahead * (job.stages - 1 - j) for j in range(job.stages)]
    return Play(job, lambda action: (urgency[action.kind], *_backward_first(action)), _room(job), memory).play()


def _backward_first(action: Action) -> tuple[bool, int, int]:
    return (action.kind is Kind.FORWARD, action.micro, -action.stage)


def _room(job: Job) -> list[int]:
    """Lets each stage hold as many micro-batches as there are stages from it on, and those that go ahead."""
    return [job.stages - j + job.ahead * (job.stages - 1 - j) for j in range(job.stages)]


SCHEDULES: dict[str, Callable[[Job], list[ActionList]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zb": zero_bubble,
    "stream": stream,
}


def plan(
    name: str,
    stages: int,
    micros: int,
    workers: tuple[int, ...] | None = None,
    skips: tuple[tuple[int, int], ...] = (),
    *,
    ahead: int = 0,
) -> tuple[Job, list[ActionList]]:
    """Makes a schedule by name.

    Args:
        name: ``gpipe``, ``1f1b``, ``interleaved``, ``zb`` or ``stream``.
        stages: their number.
        micros: the number of micro-batches; there may be fewer than stages.
        workers: the worker of each stage (default: one each; ``interleaved`` deals two stages to a worker).
        skips: pairs of stages joined over the heads of others (default: none).
        ahead: how many more micro-batches a stage of ``1f1b`` or ``zb`` may have under way for each stage after it
            (default: none).

    Returns:
        The job, and what each worker does.

    Raises:
        ValueError: there is no such schedule, or the workers do not fit the stages.
    """
    if not isinstance(name, str) or name not in SCHEDULES:
        raise ArgumentError(f"no schedule is called {name!r:.100}; {instead_of(str(name), SCHEDULES)}")
    if workers is None:
        workers = in_turn(stages, -(-stages // 2) if name == "interleaved" else stages)
    job = Job(stages, micros, workers, skips, split=name == "zb", ahead=ahead)
    return job, SCHEDULES[name](job)
