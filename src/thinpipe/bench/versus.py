"""``thinpipe bench pipeline-vs-dp``: batches trained by pipelines and by data parallel processes.

A row is a model on so many processes, each on cores of its own where there are enough. Within a row all variants take
turns in the same processes, so what disturbs one disturbs the others.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path

import torch
from torch import nn

from thinpipe.bench.documents import DDP
from thinpipe.bench.link_processes import run_ranks
from thinpipe.bench.measure import Samples
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.seating import Seating, seatings
from thinpipe.bench.shapes import OPTIMIZERS
from thinpipe.bench.versus_cut import Cut, Manner, documents_cut, micro_batch, timed_cut, unit_seconds
from thinpipe.bench.versus_plan import ALONE, Plan, Variant
from thinpipe.bench.versus_rank import Assignment, Taken
from thinpipe.cutting import split

BENCH = "pipeline-vs-dp"
WARM_UP = 1

_PATIENCE = 6 * 3600.0


def steps_of(plan: Plan) -> int:
    """Counts the steps that all variants take together."""
    return (WARM_UP + plan.rounds) * len(plan.variants)


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
    samples: dict[str, list[float]] = {each.name: [] for each in plan.variants}
    sent: dict[str, float] = {}
    losses: dict[str, list[float]] = {each.name: [] for each in plan.variants}

    def hear(line: str) -> None:
        taken = Taken(**json.loads(line))
        if taken.counted:
            samples[taken.variant].append(taken.seconds)
        sent[taken.variant] = taken.sent
        losses[taken.variant].append(taken.loss)
        tick(taken.variant)

    with tempfile.TemporaryDirectory(prefix="thinpipe-") as folder:
        places = seatings(plan.processes, plan.threads, str(Path(folder, "store")))
        module = [sys.executable, "-m", "thinpipe.bench.versus_rank"]
        assignments = [_assignment(plan, places, rank, cuts) for rank in range(plan.processes)]
        run_ranks([[*module, each.text()] for each in assignments], hear, patience=_PATIENCE)
    settings = {
        **plan.settings(),
        "model": plan.shape.name,
        "size": plan.shape.size,
        "tiny": plan.shape.tiny,
        "optimizer": OPTIMIZERS[plan.shape.name],
        "parameters": sum(p.numel() for p in model.parameters()),
        "pinned_to": [place.cores for place in places],
        "cuts": {name: asdict(where) for name, where in cuts.items()},
        "unit_seconds": costs,
        "losses": losses,
        "largest_share": {name: _largest_share(model, where) for name, where in cuts.items()},
    }
    notes = _notes(plan, places)
    notes += [f"the loss of {name} was not finite" for name, each in losses.items() if not all(map(isfinite, each))]
    machine = Machine.current("transformers", "torchgpipe")
    found = results(Samples(samples), sent, plan.variants, plan.base)
    return Record(BENCH, found, samples, settings, machine, plan.name, notes=notes)


def results(
    samples: Samples, sent: Mapping[str, float], variants: Sequence[Variant], base: Variant
) -> dict[str, float | None]:
    """Gives throughput and bytes, and ratios of throughputs: medians of those within rounds.

    Args:
        samples: seconds of every variant.
        sent: bytes of every variant.
        variants: all of them.
        base: the one that speed-ups are over.
    """
    alone = next(each for each in variants if each.way == ALONE)

    def over(other: Variant, each: Variant) -> float:
        return samples.ratio(other.name, each.name) * each.rows / other.rows

    found: dict[str, float | None] = {}
    for each in variants:
        equal = Variant(DDP, each.rows, each.processes)
        piped = each.way not in (ALONE, DDP)
        found[f"{each.name}_throughput"] = each.rows / samples.median(each.name)
        found[f"{each.name}_megabytes"] = sent[each.name] / 1e6
        found[f"{each.name}_over_base"] = over(base, each)
        found[f"{each.name}_over_equal_batch"] = over(equal, each) if piped and equal in variants else None
        found[f"{each.name}_over_one"] = over(alone, each)
    return found


def _assignment(plan: Plan, places: Sequence[Seating], rank: int, cuts: Mapping[str, Cut]) -> Assignment:
    # Small operators wait for threads longer than they compute.
    cores = [] if plan.shape.tiny else [core for place in places for core in place.cores or ()]
    return Assignment(
        seating=places[rank],
        cores=tuple(cores) or None,
        shape=plan.shape,
        training=plan.training,
        device=plan.device,
        cuts=cuts,
        variants=plan.variants,
        rounds=plan.rounds,
        warm_up=WARM_UP,
        seed=plan.seed,
    )


def _notes(plan: Plan, places: Sequence[Seating]) -> list[str]:
    if plan.device == "cuda":
        gpus = torch.cuda.device_count()
        few = f"{plan.processes} processes shared {gpus} GPU{'s' * (gpus > 1)}: times are not those of as many GPUs"
        return [few] if gpus < plan.processes else []
    return [] if places[0].cores else ["processes shared cores, of which there were too few: times mean little"]


def _dealt(plan: Plan) -> tuple[nn.Module, dict[str, Cut], list[float]]:
    """Cuts the model as variants want it; for cuts by time, measures its units with as many threads as a rank has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    torch.manual_seed(plan.seed)
    try:
        model, shape = plan.shape.model(), plan.shape
        names, costs = shape.units(model), []
        manners = [Manner(name) for name in dict.fromkeys(each.cut for each in plan.variants if each.cut)]
        timed = next((each for each in plan.variants if each.cut and Manner(each.cut).is_timed), None)
        if timed is not None:
            inputs, _ = shape.batch(timed.rows, torch.Generator().manual_seed(plan.seed))
            sample = micro_batch(inputs, timed.chunks, timed.rows)
            costs = unit_seconds(shape, model, sample, plan.profile_seconds)
    finally:
        torch.set_num_threads(threads)
    cuts = {
        str(manner): timed_cut(manner, names, costs, plan.processes, shape.ends)
        if manner.is_timed
        else documents_cut(manner, shape.name, names, plan.processes)
        for manner in manners
    }
    return model, cuts, costs


def _largest_share(model: nn.Module, where: Cut) -> float:
    """Tells what share of the parameters the rank has that has the most; data parallel processes have all of them."""
    parts: Sequence[nn.Module] = split(model, at=where.at)
    held = [0] * (max(where.ranks) + 1)
    for part, rank in zip(parts, where.ranks, strict=True):
        held[rank] += sum(p.numel() for p in part.parameters())
    return max(held) / sum(held)
