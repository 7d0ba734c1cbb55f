"""One process of ``thinpipe bench data-parallel``; run as a module, with its ``Assignment`` as the one argument.

Rank 0 writes a line of JSON with the buckets first, and then one for every step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

import torch
from torch import distributed

from thinpipe.bench.data_parallel_replica import Replica, Times
from thinpipe.bench.measure import turns
from thinpipe.bench.rank_life import Say, live
from thinpipe.bench.seating import Seating, gpus_of
from thinpipe.bench.shapes import Shape


@dataclass(frozen=True)
class Assignment:
    """What a rank is to do.

    Args:
        seating: its place.
        shape: the model.
        rows: of its own batch.
        device: ``cpu`` or ``cuda``.
        rounds: how often each variant is timed.
        warm_up: rounds before those, not counted.
        seed: of weights and data.
    """

    seating: Seating
    shape: Shape
    rows: int
    device: str
    rounds: int
    warm_up: int
    seed: int

    def text(self) -> str:
        """Writes it as an argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Assignment:
        """Reads what ``text`` wrote."""
        entries = json.loads(text)
        return cls(**(entries | {"seating": Seating.read(entries["seating"]), "shape": Shape(**entries["shape"])}))


@dataclass(frozen=True)
class Taken:
    """A variant that had its turn: its name, its seconds by what they were spent on, and whether it counts."""

    variant: str
    seconds: Times
    counted: bool


def run(assignment: Assignment, say: Say) -> None:
    """Joins the other ranks and takes all steps with them."""
    own, device, backend = assignment.seating, torch.device("cpu"), "gloo"
    if assignment.device == "cuda":
        devices, backend = gpus_of(own.world)
        device = devices[own.rank]
        torch.cuda.set_device(device)
    own.take(backend)
    replica = Replica(assignment.shape, assignment.rows, device, rank=own.rank, seed=assignment.seed)
    say({"buckets": replica.buckets, "backend": backend})
    for taken in _in_turns(replica.variants(), assignment):
        say(asdict(taken))
    distributed.destroy_process_group()  # not after a failure, where it may wait for the others


def _in_turns(variants: Mapping[str, Callable[[], Times]], assignment: Assignment) -> Iterator[Taken]:
    """Takes every variant in each round, beginning with another one each time."""
    for name, counted in turns(list(variants), rounds=assignment.rounds, warm_up=assignment.warm_up):
        yield Taken(name, variants[name](), counted)


def _work(text: str, say: Say) -> None:
    assignment = Assignment.read(text)
    run(assignment, say if assignment.seating.rank == 0 else lambda _: None)


if __name__ == "__main__":
    live(_work)
