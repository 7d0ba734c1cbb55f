"""``thinpipe bench pipeline-vs-dp``: the same batch trained by a pipeline and by data parallel processes.

A row is a model on so many processes, each on cores of its own where there are enough. Within a row all variants take
turns in the same processes, so what disturbs one disturbs the others.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path

import torch
from torch import nn

from thinpipe.bench.link_processes import run_ranks
from thinpipe.bench.measure import Samples
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.seating import seatings
from thinpipe.bench.shapes import OPTIMIZERS, Shape
from thinpipe.bench.versus_cut import Cut, Manner, cut, micro_batch, unit_seconds
from thinpipe.bench.versus_rank import Assignment, Taken
from thinpipe.bench.versus_variants import ALONE, DDP, name_of
from thinpipe.cutting import split

BENCH = "pipeline-vs-dp"
CODEC = "had:4"

_PATIENCE = 1800.0
_WARM_UP = 1


@dataclass(frozen=True)
class Plan:
    """A row.

    Args:
        shape: the model.
        processes: how many.
        rows: of the batch, all processes together.
        chunks: micro-batches of a pipeline (default: 4).
        codec: at the cuts of those pipelines that have one (default: ``had:4``).
        schedule: of pipelines (default: ``1f1b``).
        threads: of each process, and cores (default: 1).
        rounds: how often each variant is timed (default: 3).
        profile_seconds: about how long to measure the units of the model (default: 2).
        seed: of weights and data (default: 0).
    """

    shape: Shape
    processes: int
    rows: int
    chunks: int = 4
    codec: str = CODEC
    schedule: str = "1f1b"
    threads: int = 1
    rounds: int = 3
    profile_seconds: float = 2.0
    seed: int = 0

    @property
    def name(self) -> str:
        """The row."""
        return f"{self.shape.name}-{self.processes}"

    @property
    def variants(self) -> tuple[str, ...]:
        """What is timed."""
        return ALONE, DDP, *(name_of(manner, codec) for manner in Manner for codec in (None, self.codec))

    @property
    def steps(self) -> int:
        """How many steps all variants take together."""
        return (_WARM_UP + self.rounds) * len(self.variants)


def bench_versus(plan: Plan, *, tick: Callable[[str], None] = lambda _: None) -> Record:
    """Measures a row.

    Args:
        plan: what is run.
        tick: called with the name of a variant whenever it has taken a step (default: nothing).

    Raises:
        RankError: a process failed; all are gone.
        ImportError: the model comes from a package that is not installed.
    """
    model, cuts, costs = _dealt(plan)
    samples: dict[str, list[float]] = {name: [] for name in plan.variants}
    sent: dict[str, float] = {}
    losses: dict[str, list[float]] = {name: [] for name in plan.variants}

    def hear(line: str) -> None:
        taken = Taken(**json.loads(line))
        if taken.counted:
            samples[taken.variant].append(taken.seconds)
        sent[taken.variant] = taken.sent
        losses[taken.variant].append(taken.loss)
        tick(taken.variant)

    with tempfile.TemporaryDirectory(prefix="thinpipe-") as folder:
        places = seatings(plan.processes, plan.threads, str(Path(folder, "store")))
        assignments = [
            Assignment(
                seating=place,
                shape=plan.shape,
                rows=plan.rows,
                chunks=plan.chunks,
                schedule=plan.schedule,
                cuts={str(manner): where for manner, where in cuts.items()},
                variants=plan.variants,
                rounds=plan.rounds,
                warm_up=_WARM_UP,
                seed=plan.seed,
            )
            for place in places
        ]
        module = [sys.executable, "-m", "thinpipe.bench.versus_rank"]
        run_ranks([[*module, each.text()] for each in assignments], hear, patience=_PATIENCE)
    settings = {
        **{name: value for name, value in asdict(plan).items() if name != "shape"},
        "model": plan.shape.name,
        "size": plan.shape.size,
        "tiny": plan.shape.tiny,
        "optimizer": OPTIMIZERS[plan.shape.name],
        "parameters": sum(p.numel() for p in model.parameters()),
        "pinned_to": [place.cores for place in places],
        "cuts": {str(manner): asdict(where) for manner, where in cuts.items()},
        "unit_seconds": costs,
        "losses": losses,
        "largest_share": {str(manner): _largest_share(model, where) for manner, where in cuts.items()},
    }
    notes = [] if places[0].cores else ["processes shared cores, of which there were too few: times mean little"]
    notes += [f"the loss of {name} was not finite" for name, each in losses.items() if not all(map(isfinite, each))]
    machine = Machine.current("transformers")
    return Record(BENCH, results(Samples(samples), sent), samples, settings, machine, plan.name, notes=notes)


def results(samples: Samples, sent: Mapping[str, float]) -> dict[str, float | None]:
    """Gives seconds and bytes of a batch, and speed-ups: medians of ratios within rounds."""
    found: dict[str, float | None] = {}
    for name in samples.seconds:
        found[f"{name}_seconds"] = samples.median(name)
        found[f"{name}_megabytes"] = sent[name] / 1e6
        found[f"{name}_speedup"] = samples.ratio(ALONE, name)
        found[f"{name}_over_ddp"] = samples.ratio(DDP, name)
    return found


def _dealt(plan: Plan) -> tuple[nn.Module, dict[Manner, Cut], list[float]]:
    """Measures the model's units with as many threads as a rank has, and cuts by that."""
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    torch.manual_seed(plan.seed)
    try:
        model, shape = plan.shape.model(), plan.shape
        inputs, _ = shape.batch(plan.rows, torch.Generator().manual_seed(plan.seed))
        costs = unit_seconds(shape, model, micro_batch(inputs, plan.chunks, plan.rows), plan.profile_seconds)
    finally:
        torch.set_num_threads(threads)
    names = shape.units(model)
    return model, {m: cut(m, names, costs, plan.processes, shape.ends) for m in Manner}, costs


def _largest_share(model: nn.Module, where: Cut) -> float:
    """Tells what share of the parameters the rank has that has the most; data parallel processes have all of them."""
    parts: Sequence[nn.Module] = split(model, at=where.at)
    held = [0] * (max(where.ranks) + 1)
    for part, rank in zip(parts, where.ranks, strict=True):
        held[rank] += sum(p.numel() for p in part.parameters())
    return max(held) / sum(held)
