"""``thinpipe bench data-parallel``: where the time of a data parallel step goes, with SGD and with AdamW.

Every part of the step is timed with all ranks waiting for each other, and the GPU if there is one, at both ends; beside
it the whole step, which waits for nothing. Both are in the record, and how well they agree.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from thinpipe.bench.data_parallel_rank import Assignment, Taken
from thinpipe.bench.data_parallel_replica import ALL_REDUCE, ALONE, OPTIMIZERS, PHASES
from thinpipe.bench.link_processes import run_ranks
from thinpipe.bench.measure import Samples
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.seating import seatings
from thinpipe.bench.shapes import Shape

BENCH = "data-parallel"

_PATIENCE = 1800.0
_WARM_UP = 1
_VARIANTS = 2 * len(OPTIMIZERS) + 2


@dataclass(frozen=True)
class Plan:
    """A row.

    Args:
        shape: the model.
        processes: how many.
        rows: of the batch of each process.
        device: ``cpu``, or ``cuda``, which processes share if there are more of them than GPUs (default: ``cpu``).
        threads: of each process, and cores (default: 1).
        rounds: how often each variant is timed (default: 5).
        seed: of weights and data (default: 0).
    """

    shape: Shape
    processes: int
    rows: int
    device: str = "cpu"
    threads: int = 1
    rounds: int = 5
    seed: int = 0

    @property
    def name(self) -> str:
        """The row: all that may differ between two of them, so that none takes the place of another's record."""
        parts = [
            f"{self.shape.name}-{self.processes}-b{self.rows}",
            *self.shape.parts,
            *([f"{self.threads}threads"] if self.threads > 1 else []),
            *([f"seed{self.seed}"] if self.seed else []),
            *([self.device] if self.device != "cpu" else []),
        ]
        return "-".join(parts)

    @property
    def turns(self) -> int:
        """How many turns all variants take together."""
        return (_WARM_UP + self.rounds) * _VARIANTS


def bench_data_parallel(plan: Plan, *, tick: Callable[[str], None] = lambda _: None) -> Record:
    """Measures a row.

    Args:
        plan: what is run.
        tick: called with the name of a variant whenever it had its turn (default: nothing).

    Raises:
        RankError: a process failed; all are gone.
    """
    samples: dict[str, list[float]] = {}
    found: dict[str, object] = {}

    def hear(line: str) -> None:
        entries = json.loads(line)
        if "buckets" in entries:
            found.update(entries)
            return
        taken = Taken(**entries)
        for name, seconds in taken.seconds.items() if taken.counted else ():
            samples.setdefault(name, []).append(seconds)
        tick(taken.variant)

    with tempfile.TemporaryDirectory(prefix="thinpipe-") as folder:
        places = seatings(plan.processes, plan.threads, str(Path(folder, "store")))
        module = [sys.executable, "-m", "thinpipe.bench.data_parallel_rank"]
        assignments = [
            Assignment(place, plan.shape, plan.rows, plan.device, plan.rounds, _WARM_UP, plan.seed) for place in places
        ]
        run_ranks([[*module, each.text()] for each in assignments], hear, patience=_PATIENCE)
    settings = {
        **{name: value for name, value in asdict(plan).items() if name != "shape"},
        "model": plan.shape.name,
        "size": plan.shape.size,
        "tiny": plan.shape.tiny,
        "pinned_to": [place.cores for place in places],
        **found,
    }
    notes = [] if places[0].cores else ["processes shared cores, of which there were too few: times mean little"]
    machine = Machine.current("transformers")
    return Record(BENCH, results(samples), samples, settings, machine, plan.name, notes=notes)


def results(samples: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """Gives the medians in ms, and what is a difference or a ratio as the median of those within rounds."""
    found: dict[str, float | None] = {
        "backward_alone_ms": _ms(samples[ALONE]),
        "all_reduce_alone_ms": _ms(samples[ALL_REDUCE]),
    }
    ratios = Samples({name: list(each) for name, each in samples.items()})
    for name in OPTIMIZERS:
        parts = [samples[f"{name} {phase}"] for phase in PHASES]
        sums = [sum(each) for each in zip(*parts, strict=True)]
        added = [a - b for a, b in zip(samples[f"{name} backward"], samples[ALONE], strict=True)]
        found |= {f"{name}_{phase}_ms": _ms(part) for phase, part in zip(PHASES, parts, strict=True)}
        found |= {f"{name}_timer_{each}_ms": _ms(samples[f"{name} timer {each}"]) for each in ("data", "backward")}
        found |= {
            f"{name}_whole_ms": _ms(samples[f"{name} whole"]),
            f"{name}_all_reduce_ms": _ms(added),
            f"{name}_phases_over_whole": statistics.median(
                a / b for a, b in zip(sums, samples[f"{name} whole"], strict=True)
            ),
        }
        found[f"{name}_over_sgd_optimizer"] = ratios.ratio(f"{name} optimizer", "sgd optimizer")
        found[f"{name}_over_sgd_whole"] = ratios.ratio(f"{name} whole", "sgd whole")
    return found


def _ms(seconds: Sequence[float]) -> float:
    return 1e3 * statistics.median(seconds)
