"""One process of ``thinpipe bench pipeline-vs-dp``; run as a module, with its ``Assignment`` as the one argument.

Rank 0 writes a line of JSON for every step: the variant, its seconds, its loss, what all ranks sent in it, and whether
it counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import torch
from torch import distributed

from thinpipe.bench.measure import turns
from thinpipe.bench.rank_life import Say, live
from thinpipe.bench.seating import Seating, slowest, summed
from thinpipe.bench.shapes import Shape
from thinpipe.bench.versus_cut import Cut
from thinpipe.bench.versus_variants import Entry, Seat, seated


@dataclass(frozen=True)
class Assignment:
    """What a rank is to do.

    Args:
        seating: its place.
        shape: the model.
        rows: of the batch, all processes together.
        chunks: micro-batches of a pipeline.
        schedule: of a pipeline.
        cuts: where pipelines are cut, by manner.
        variants: what to time, in turns.
        rounds: how often each is timed.
        warm_up: rounds before those, not counted.
        seed: of weights and data.
    """

    seating: Seating
    shape: Shape
    rows: int
    chunks: int
    schedule: str
    cuts: Mapping[str, Cut]
    variants: tuple[str, ...]
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
        entries["seating"], entries["shape"] = Seating.read(entries["seating"]), Shape(**entries["shape"])
        entries["cuts"] = {name: Cut(tuple(c["at"]), tuple(c["ranks"])) for name, c in entries["cuts"].items()}
        entries["variants"] = tuple(entries["variants"])
        return cls(**entries)


@dataclass(frozen=True)
class Taken:
    """A step that was taken.

    Args:
        variant: of which.
        seconds: until the last rank was done.
        loss: of the batch.
        sent: bytes of all ranks together.
        counted: whether it counts.
    """

    variant: str
    seconds: float
    loss: float
    sent: float
    counted: bool


def run(assignment: Assignment, write: Callable[[Taken], None]) -> None:
    """Joins the other ranks and takes all steps with them."""
    own = assignment.seating
    own.take()
    torch.manual_seed(assignment.seed)
    shape = assignment.shape
    model = shape.model()
    inputs, targets = shape.batch(assignment.rows, torch.Generator().manual_seed(assignment.seed))
    seat = Seat(own.rank, own.world, shape, model, inputs, targets, assignment.chunks, assignment.schedule)
    with ExitStack() as all_seated:
        entries = {name: all_seated.enter_context(seated(name, seat, assignment.cuts)) for name in assignment.variants}
        for taken in _in_turns(entries, assignment):
            write(taken)
    distributed.destroy_process_group()  # not after a failure, where it may wait for the others


def _in_turns(entries: Mapping[str, Entry], assignment: Assignment) -> Iterator[Taken]:
    """Takes a step of every variant in each round, beginning with another one each time."""
    for name, counted in turns(list(entries), rounds=assignment.rounds, warm_up=assignment.warm_up):
        yield _taken(name, entries[name], counted=counted)


def _taken(name: str, entry: Entry, *, counted: bool) -> Taken:
    losses: list[float | None] = []
    before = entry.sent()
    seconds = slowest(lambda: losses.append(entry.step()))
    return Taken(name, seconds, summed(losses[0] or 0.0), summed(entry.sent() - before), counted)


def _work(text: str, say: Say) -> None:
    assignment = Assignment.read(text)
    run(assignment, lambda taken: say(asdict(taken)) if assignment.seating.rank == 0 else None)


if __name__ == "__main__":
    live(_work)
