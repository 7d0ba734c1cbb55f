"""``thinpipe bench heap``: what it gains on a CPU to keep memory that was freed, in two processes that take turns."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thinpipe.bench.heap_rank import Work
from thinpipe.bench.link_processes import Rank, started, told
from thinpipe.bench.measure import in_turns
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.sheet import Sheet, notes_of

BENCH = "heap"
KEPT, RETURNED = "kept", "returned"
_PATIENCE = 600.0


@dataclass(frozen=True)
class Row:
    """What is trained.

    Args:
        batch: images of a step.
        codec: packs what crosses the cuts (default: there are none).
    """

    batch: int
    codec: str | None = None

    @property
    def name(self) -> str:
        """Of the row."""
        return f"batch-{self.batch}" + ("" if self.codec is None else f"-{self.codec.replace(':', '')}")


ROWS = (Row(64), Row(256), Row(256, "had:4"), Row(256, "wave:4"))
TINY = (Row(2), Row(2, "had:4"))


def measure_heap(row: Row, *, rounds: int, seed: int = 0) -> Record:
    """Times a step with memory kept and with memory given back.

    Args:
        row: what is trained.
        rounds: how often each is timed.
        seed: of weights and data (default: 0).

    Raises:
        RankError: one of the processes failed, or fell silent.
    """
    works = {name: Work(name == KEPT, row.batch, row.codec, seed) for name in (KEPT, RETURNED)}
    commands = [[sys.executable, "-m", "thinpipe.bench.heap_rank", work.text()] for work in works.values()]
    said: dict[str, list[dict[str, float]]] = {name: [] for name in works}
    with started(commands, heard=range(len(commands))) as ranks:
        for rank in ranks:
            _heard(rank, ranks)

        def step(name: str, rank: Rank) -> Callable[[], None]:
            def run() -> None:
                assert rank.process.stdin is not None
                rank.process.stdin.write(b"\n")
                said[name].append(_heard(rank, ranks))

            return run

        variants = {name: step(name, rank) for name, rank in zip(works, ranks, strict=True)}
        samples = in_turns(variants, rounds=rounds)
    results: dict[str, float | None] = {"speedup": samples.ratio(RETURNED, KEPT)}
    for name, answers in said.items():
        results[f"{name}_ms"] = 1000 * samples.median(name)
        results[f"{name}_faults"] = (answers[-1]["faults"] - answers[-1 - rounds]["faults"]) / rounds
        results[f"{name}_peak_mib"] = answers[-1]["peak_mib"]
    settings = {"batch": row.batch, "codec": row.codec, "rounds": rounds, "seed": seed}
    return Record(BENCH, results, samples.seconds, settings, Machine.current(), row.name)


def _heard(rank: Rank, ranks: Sequence[Rank]) -> dict[str, float]:
    """Waits for a line of a process."""
    try:
        line = rank.line(_PATIENCE)
    except TimeoutError:
        raise told(f"no answer in {_PATIENCE:.0f} s", ranks) from None
    if not line:
        raise told("a process ended", ranks)
    answer: dict[str, float] = json.loads(line)
    return answer


def heap_sheet(records: Sequence[Record]) -> Sheet:
    """Sets both beside each other."""
    heads = ["row", "batch", "cut, codec", "ms, kept", "ms, given back", "speed-up"]
    heads += ["page faults a step, kept", "given back", "peak MiB, kept", "given back"]
    lines, bars = [], {}
    for record in records:
        found = record.results
        numbers = [f"{found[f'{name}_{what}']:,.0f}" for what in ("faults", "peak_mib") for name in (KEPT, RETURNED)]
        times = [f"{found[f'{name}_ms']:.0f}" for name in (KEPT, RETURNED)]
        cut = record.settings["codec"] or "not cut"
        lines.append([record.row, str(record.settings["batch"]), cut, *times, f"{found['speedup']:.2f}x", *numbers])
        bars[record.row] = {"speed-up": found["speedup"]}
    notes = [
        "A step of MobileNetV2 for images of 32 pixels, in one micro-batch, float32, channels_last; the "
        "cuts are `before-relu`. Medians over rounds, in each of which both processes take a step."
    ]
    return Sheet("Memory that is kept", heads, lines, notes + notes_of(records), "speed-up by keeping memory", bars)
