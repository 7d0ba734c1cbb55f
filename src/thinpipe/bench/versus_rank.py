"""One process of ``thinpipe bench pipeline-vs-dp``; run as a module, with its ``Assignment`` as the one argument.

Rank 0 writes a line of JSON for every step: the variant, its seconds, its loss, what all ranks sent in it, and whether
it counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

import torch
from torch import distributed

from thinpipe.bench.measure import turns
from thinpipe.bench.rank_life import Say, live
from thinpipe.bench.seating import Seating, gpus_of, slowest, summed
from thinpipe.bench.shapes import Shape
from thinpipe.bench.versus_cut import Cut
from thinpipe.bench.versus_plan import Training, Variant
from thinpipe.bench.versus_variants import Entry, Seat, seated
from thinpipe.runtime.rank_step import moved


@dataclass(frozen=True)
class Assignment:
    """What a rank is to do.

    Args:
        seating: its place.
        cores: those of all ranks, for torchgpipe; None for a rank's own.
        shape: the model.
        training: how all variants train.
        device: ``cpu`` or ``cuda``.
        cuts: where pipelines are cut, by name.
        variants: what to time, in turns.
        rounds: how often each is timed.
        warm_up: rounds before those, not counted.
        seed: of weights and data.
    """

    seating: Seating
    cores: tuple[int, ...] | None
    shape: Shape
    training: Training
    device: str
    cuts: Mapping[str, Cut]
    variants: tuple[Variant, ...]
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
        entries["training"] = Training(**entries["training"])
        entries["cores"] = None if entries["cores"] is None else tuple(entries["cores"])
        entries["cuts"] = {name: Cut(tuple(c["at"]), tuple(c["ranks"])) for name, c in entries["cuts"].items()}
        entries["variants"] = tuple(Variant(**each) for each in entries["variants"])
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
    own, devices, backend = assignment.seating, [torch.device("cpu")] * assignment.seating.world, "gloo"
    if assignment.device == "cuda":
        devices, backend = gpus_of(own.world)
        torch.cuda.set_device(devices[own.rank])
    own.take(backend)
    torch.manual_seed(assignment.seed)
    shape = assignment.shape
    model = shape.model()
    largest = max(each.rows for each in assignment.variants)
    inputs, targets = shape.batch(largest, torch.Generator().manual_seed(assignment.seed))
    seat = Seat(
        rank=own.rank,
        world=own.world,
        shape=shape,
        model=model,
        inputs=moved(inputs, devices[own.rank]),
        targets=targets.to(devices[own.rank]),
        training=assignment.training,
        devices=devices,
        cores=assignment.cores,
    )
    with seated(assignment.variants, seat, assignment.cuts) as entries:
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
