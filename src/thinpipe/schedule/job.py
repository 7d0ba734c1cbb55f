"""What has to be done: every stage forward and backward on every micro-batch, and what each action waits for.

::

    F0.i -> F1.i -> F2.i          B2.i waits for F2.i, B1.i for B2.i, and so on down; a skip from stage 0 to stage 2
     '--------------^             makes F2.i wait for F0.i as well, and B0.i for B2.i
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thinpipe.schedule.action import Action, Kind


@dataclass(frozen=True)
class Job:
    """One training step.

    Args:
        stages: their number ``n``.
        micros: the number of micro-batches ``m``.
        workers: the worker of each stage; ``(0, 1, 0)`` is a U: the first and the last stage on worker 0.
        skips: pairs of stages that are joined over the heads of those between them (default: none).
        split: whether a backward is two actions, ``I`` and ``W`` (default: no).
        ahead: how many more micro-batches a stage may have under way for each stage after it, so that it has something
            to do while messages travel (default: none, as if they took no time).
    """

    stages: int
    micros: int
    workers: tuple[int, ...]
    skips: tuple[tuple[int, int], ...] = ()
    split: bool = False
    ahead: int = 0

    def __post_init__(self) -> None:
        if self.stages < 1 or self.micros < 1:
            raise ValueError(f"a job has a stage and a micro-batch at least, got {self.stages} and {self.micros}")
        if self.ahead < 0:
            raise ValueError(f"a stage cannot have fewer micro-batches under way than it needs, got ahead={self.ahead}")
        if len(self.workers) != self.stages:
            raise ValueError(f"{self.stages} stages need a worker each, got {len(self.workers)}: {self.workers}")
        if set(self.workers) != set(range(max(self.workers) + 1)):
            raise ValueError(f"workers are numbered from 0 without gaps, got {self.workers}")
        for skip in self.skips:
            if not 0 <= skip[0] < skip[1] < self.stages:
                raise ValueError(f"a skip goes from a stage to a later one of {self.stages}, got {skip}")

    @property
    def width(self) -> int:
        """The number of workers."""
        return max(self.workers) + 1

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What is done for every stage and micro-batch."""
        return (Kind.FORWARD, Kind.INPUT, Kind.WEIGHT) if self.split else (Kind.FORWARD, Kind.BACKWARD)

    @property
    def gradient(self) -> Kind:
        """The action that makes the gradient of a stage's input."""
        return Kind.INPUT if self.split else Kind.BACKWARD

    def actions(self) -> Iterator[Action]:
        """Lists all that must be done; a recomputation may be added to a schedule, but need not be."""
        for kind in self.kinds:
            for j in range(self.stages):
                yield from (Action(kind, j, i) for i in range(self.micros))

    def worker(self, action: Action) -> int:
        """Tells whose action it is."""
        return self.workers[action.stage]

    def needs(self, action: Action) -> list[Action]:
        """Lists what an action waits for."""
        j, i = action.stage, action.micro
        if action.kind is Kind.FORWARD:
            return [Action(Kind.FORWARD, k, i) for k in self._before(j)]
        if action.kind is Kind.WEIGHT:
            return [Action(Kind.INPUT, j, i)]
        if action.kind is Kind.RECOMPUTE:
            return [Action(Kind.FORWARD, j, i)]
        return [Action(Kind.FORWARD, j, i), *(Action(action.kind, k, i) for k in self._after(j))]

    def _before(self, j: int) -> list[int]:
        return sorted({k for k in (j - 1,) if k >= 0} | {source for source, target in self.skips if target == j})

    def _after(self, j: int) -> list[int]:
        return sorted(
            {k for k in (j + 1,) if k < self.stages} | {target for source, target in self.skips if source == j}
        )


def in_turn(stages: int, workers: int) -> tuple[int, ...]:
    """Deals stages out to workers in turn: 0, 1, 0, 1."""
    return tuple(j % workers for j in range(stages))


def parse_workers(text: str) -> tuple[int, ...]:
    """Reads the workers of stages, as ``0,1,0``.

    Raises:
        ValueError: it is no list of numbers.
    """
    words: Sequence[str] = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise ValueError(f"workers are written as 0,1,0, one for each stage, got {text!r}")
    return tuple(int(word) for word in words)
