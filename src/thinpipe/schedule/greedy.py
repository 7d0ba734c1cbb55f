"""Makes a schedule by playing it: whoever is idle takes the most urgent action that is ready.

What is played can be played again: lists made so never wait in a circle, whatever the workers of the stages are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, TypeAlias

from thinpipe.schedule.action import Action, ActionList, Kind
from thinpipe.schedule.job import Job

Urgency: TypeAlias = Callable[[Action], Any]
"""Orders actions, the most urgent first."""

COSTS = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.INPUT: 1, Kind.WEIGHT: 1, Kind.RECOMPUTE: 1}
"""How long actions take in the play: a backward computes two products where a forward computes one."""


class Play:
    """One play of a job.

    Args:
        job: what has to be done.
        urgency: which ready action is taken.
        room: how many micro-batches each stage may have under way, from the beginning of the forward to the end of the
            gradient of the input; it keeps a stage from running ahead.
        memory: how many micro-batches each stage may hold, to the end of the whole backward.
    """

    def __init__(self, job: Job, urgency: Urgency, room: list[int], memory: list[int]) -> None:
        self._job = job
        self._urgency = urgency
        self._room = room
        self._memory = memory
        self._under_way = [0] * job.stages
        self._held = [0] * job.stages
        self._waiting = {action: len(job.needs(action)) for action in job.actions()}
        self._waited_for: dict[Action, list[Action]] = {}
        for action in self._waiting:
            for need in job.needs(action):
                self._waited_for.setdefault(need, []).append(action)
        self._ready: list[list[Action]] = [[] for _ in range(job.width)]
        for action, needs in self._waiting.items():
            if needs == 0:
                self._ready[job.worker(action)].append(action)
        self._running: list[tuple[int, int, int]] = []
        self._lists: list[ActionList] = [[] for _ in range(job.width)]

    def play(self) -> list[ActionList]:
        """Plays to the end; returns what each worker did."""
        now, idle = 0, set(range(self._job.width))
        while True:
            for worker in sorted(idle):
                self._begin(worker, now, idle, hold=True)
            if not self._running and any(self._ready):
                # Room alone keeps everybody from going on: it is better to hold more than to stand still.
                for worker in sorted(idle):
                    self._begin(worker, now, idle, hold=False)
            if not self._running:
                return self._lists
            now = self._running[0][0]
            while self._running and self._running[0][0] == now:
                _, worker, _ = heapq.heappop(self._running)
                idle.add(worker)
                self._finish(self._lists[worker][-1])

    def _begin(self, worker: int, now: int, idle: set[int], *, hold: bool) -> None:
        allowed = [action for action in self._ready[worker] if not hold or self._has_room(action)]
        if not allowed:
            return
        action = min(allowed, key=self._urgency)
        self._ready[worker].remove(action)
        self._lists[worker].append(action)
        if action.kind is Kind.FORWARD:
            self._under_way[action.stage] += 1
            self._held[action.stage] += 1
        heapq.heappush(self._running, (now + COSTS[action.kind], worker, len(self._lists[worker])))
        idle.remove(worker)

    def _has_room(self, action: Action) -> bool:
        j = action.stage
        fits = self._under_way[j] < self._room[j] and self._held[j] < self._memory[j]
        return action.kind is not Kind.FORWARD or fits

    def _finish(self, action: Action) -> None:
        self._under_way[action.stage] -= action.kind in (Kind.BACKWARD, Kind.INPUT)
        self._held[action.stage] -= action.kind in (Kind.BACKWARD, Kind.WEIGHT)
        for other in self._waited_for.get(action, ()):
            self._waiting[other] -= 1
            if self._waiting[other] == 0:
                self._ready[self._job.worker(other)].append(other)
