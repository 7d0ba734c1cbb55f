"""One of the two processes of ``thinpipe bench link``; run as a module, with its ``Assignment`` as the one argument.

Rank 0 writes a line of JSON for every step, ``{"variant": "tdp_raw", "seconds": 0.58, "counted": true}``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TypeAlias

import torch
from torch import distributed

from thinpipe.bench.link_stage import STAGES, Work
from thinpipe.bench.link_variants import VARIANTS, Seat, Step
from thinpipe.bench.measure import turns
from thinpipe.bench.rank_life import Say, live

Write: TypeAlias = Callable[["Taken"], None]


@dataclass(frozen=True)
class Assignment:
    """What a rank is to do.

    Args:
        rank: 0 or 1.
        address: where rank 0 listens.
        port: there.
        interface: the network interface that gloo uses.
        variants: what to time, in turns.
        rounds: how often each is timed.
        warm_up: rounds before those, not counted.
        pause: seconds before each step, in which a token bucket fills again.
        patience: seconds after which a rank gives its silent peer up.
        work: what a step does.
        throttle: bits a second that variants hold themselves to (None: full speed, or the kernel's).
        seed: of data.
    """

    rank: int
    address: str
    port: int
    interface: str
    variants: tuple[str, ...]
    rounds: int
    warm_up: int
    pause: float
    patience: float
    work: Work
    throttle: float | None
    seed: int

    def text(self) -> str:
        """Writes it as an argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Assignment:
        """Reads what ``text`` wrote."""
        entries = json.loads(text)
        entries["work"], entries["variants"] = Work(**entries["work"]), tuple(entries["variants"])
        return cls(**entries)


@dataclass(frozen=True)
class Taken:
    """A step that was taken: of which variant, in how many seconds, and whether it counts."""

    variant: str
    seconds: float
    counted: bool


def run(assignment: Assignment, write: Write) -> None:
    """Joins the other rank and takes all steps with it."""
    os.environ["GLOO_SOCKET_IFNAME"] = assignment.interface
    torch.set_num_threads(1)  # the other rank has the other core
    torch.manual_seed(assignment.seed)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{assignment.address}:{assignment.port}",
        rank=assignment.rank,
        world_size=STAGES,
        timeout=timedelta(seconds=assignment.patience),
    )
    seat = Seat(assignment.rank, assignment.work, assignment.throttle)
    with ExitStack() as seated:
        steps = {name: seated.enter_context(VARIANTS[name].seated(seat)) for name in assignment.variants}
        for taken in _in_turns(steps, assignment):
            write(taken)
    distributed.destroy_process_group()  # not after a failure, where it may wait for the peer


def _in_turns(steps: Mapping[str, Step], assignment: Assignment) -> Iterator[Taken]:
    """Takes a step of every variant in each round, beginning with another one each time."""
    for name, counted in turns(list(steps), rounds=assignment.rounds, warm_up=assignment.warm_up):
        time.sleep(assignment.pause)
        yield Taken(name, _seconds(steps[name]), counted)


def _seconds(step: Step) -> float:
    """Times a step from when both ranks are ready to when the slower one is done."""
    distributed.barrier()
    began = time.perf_counter()
    step()
    slowest = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    return slowest.item()


def _work(text: str, say: Say) -> None:
    assignment = Assignment.read(text)
    run(assignment, lambda taken: say(asdict(taken)) if assignment.rank == 0 else None)


if __name__ == "__main__":
    live(_work)
