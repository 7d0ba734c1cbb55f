"""Proves before anything runs that a schedule does all there is to do, and that nobody waits for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from thinpipe.errors import ScheduleError
from thinpipe.schedule.action import Action, ActionList, Kind
from thinpipe.schedule.job import Job


def validate(job: Job, lists: Sequence[ActionList]) -> ActionList:
    """Checks a schedule by executing it, each worker in the order of its list.

    A worker that is at an action whose needs are not met waits. Sends wait for nobody, so if all workers wait, they
    wait for ever; and if they do not, no timing can make them.

    Returns:
        One order in which everything can be done.

    Raises:
        ScheduleError: something is missing, is there twice, is at the wrong worker, or is waited for in a circle.
    """
    if len(lists) != job.width:
        raise ScheduleError(f"{job.width} workers need a list each, got {len(lists)}")
    _check_complete(job, lists)
    done: set[Action] = set()
    order: ActionList = []
    places = [0] * len(lists)
    going = True
    while going:
        going = False
        for worker, actions in enumerate(lists):
            while places[worker] < len(actions) and all(need in done for need in _needs(job, actions, places[worker])):
                done.add(actions[places[worker]])
                order.append(actions[places[worker]])
                places[worker] += 1
                going = True
    stuck = [worker for worker, actions in enumerate(lists) if places[worker] < len(actions)]
    if stuck:
        waits = [
            f"worker {worker} is at {lists[worker][places[worker]]} and waits for "
            + ", ".join(str(need) for need in _needs(job, lists[worker], places[worker]) if need not in done)
            for worker in stuck
        ]
        raise ScheduleError(f"every worker waits for another, a deadlock: {'; '.join(waits)}")
    return order


def _needs(job: Job, actions: ActionList, place: int) -> list[Action]:
    """Lists what an action waits for; a backward also waits for its recomputation, where there is one in its list."""
    action = actions[place]
    needs = job.needs(action)
    if action.kind is job.gradient:
        again = Action(Kind.RECOMPUTE, action.stage, action.micro)
        needs += [again] if again in actions else []
    return needs


def _check_complete(job: Job, lists: Sequence[ActionList]) -> None:
    wanted = set(job.actions())
    optional = {Action(Kind.RECOMPUTE, j, i) for j in range(job.stages) for i in range(job.micros)}
    found = Counter(action for actions in lists for action in actions)
    missing = [str(action) for action in job.actions() if action not in found]
    twice = [str(action) for action, count in found.items() if count > 1]
    foreign = [str(action) for action in found if action not in wanted | optional]
    misplaced = [
        f"{action} at worker {worker}"
        for worker, actions in enumerate(lists)
        for action in actions
        if action in wanted | optional and job.worker(action) != worker
    ]
    for what, which in (
        ("is not done", missing),
        ("is done twice", twice),
        ("is no part of the job", foreign),
        ("is not that worker's", misplaced),
    ):
        if which:
            more = f" and {len(which) - 5} more" if len(which) > 5 else ""
            raise ScheduleError(f"{', '.join(which[:5])}{more} {what}")
