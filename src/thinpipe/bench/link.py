"""``thinpipe bench link``: what a slow wire between two processes costs a step, and what a codec gives back.

Two stages that sleep instead of computing exchange real tensors. Each variant takes the same steps in turns with the
others, over the same wire; the ideal is the length of the schedule if the wire took no time.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from thinpipe.bench.link_processes import run_ranks
from thinpipe.bench.link_rank import Assignment, Taken
from thinpipe.bench.link_stage import STAGES, Work
from thinpipe.bench.link_variants import VARIANTS
from thinpipe.bench.measure import Samples
from thinpipe.bench.network import ADDRESSES, BURST, INTERFACE, joined, obstacle
from thinpipe.bench.record import Machine, Record
from thinpipe.links.throttle import parse_rate

BENCH = "link"
FULL = "full"
QUOTED = ("tdp_raw", "raw", "coded")
"""The variants that every record has a figure of, or says why not."""

_START = 60.0
_SLOWER = 4.0
_WARM_UP = 1
_PORT = 29500


@dataclass(frozen=True)
class Plan:
    """What is run.

    Args:
        bandwidth: as it was asked for, ``50mbit`` or ``full``.
        variants: what to time, by name (default: those of ``QUOTED`` that there are).
        rounds: how often each is timed (default: 5).
        work: what a step does (default: 8 micro-batches of 1 MiB, 20 ms forward and 40 ms backward).
        seed: of data (default: 0).
    """

    bandwidth: str
    variants: tuple[str, ...] = tuple(name for name in QUOTED if name in VARIANTS)
    rounds: int = 5
    work: Work = Work()  # noqa: RUF009
    seed: int = 0

    @property
    def rate(self) -> float | None:
        """Bits a second, None for full speed.

        Raises:
            ValueError: the bandwidth is none.
        """
        return None if self.bandwidth == FULL else parse_rate(self.bandwidth)


def bench_link(plan: Plan, *, namespaces: bool = True, tick: Callable[[str], None] = lambda _: None) -> Record:
    """Times one step of every variant, in turns, in two processes.

    Args:
        plan: what is run.
        namespaces: whether to join the processes by a wire of their own that the kernel slows; where that cannot be,
            they use the loopback, and variants slow themselves down or are left out (default: yes).
        tick: called with the name of a variant whenever it has taken a step (default: nothing).

    Raises:
        RankError: a process failed; both are gone.
        NetworkError: the wire could not be made, although it could a moment before.
    """
    why_not = obstacle() if namespaces else "it was asked for without"
    shaped = why_not is None
    slow = plan.rate is not None
    variants = [name for name in plan.variants if shaped or not slow or VARIANTS[name].throttles]
    notes = _notes(plan, variants, why_not)
    samples: dict[str, list[float]] = {name: [] for name in variants}

    def hear(line: str) -> None:
        taken = Taken(**json.loads(line))
        if taken.counted:
            samples[taken.variant].append(taken.seconds)
        tick(taken.variant)

    if variants:
        _run(_assignment(plan, variants, shaped=shaped), plan.rate if shaped else None, hear, shaped=shaped)
    settings = {
        "bandwidth": plan.bandwidth,
        "bits_per_second": plan.rate,
        "wire": "namespaces" if shaped else "loopback",
        "work": asdict(plan.work),
        "message_bytes": plan.work.message_bytes,
        "schedule": "1f1b",
        "rounds": plan.rounds,
        "warm_up": _WARM_UP,
        "seed": plan.seed,
    }
    return Record(
        BENCH,
        results(plan.work, Samples(samples)),
        samples,
        settings,
        Machine.current(),
        row=plan.bandwidth,
        notes=notes,
    )


def results(work: Work, samples: Samples) -> dict[str, float | None]:
    """Gives the medians in ms, and the ratios that are held to bars: medians of ratios within rounds."""
    there, ideal = samples.seconds, work.ideal
    names = dict.fromkeys([*QUOTED, *there])
    medians = {f"{name}_ms": round(1e3 * samples.median(name), 2) if name in there else None for name in names}

    def ratio(numerator: str, denominator: str) -> float | None:
        return round(samples.ratio(numerator, denominator), 4) if {numerator, denominator} <= there.keys() else None

    return {
        "ideal_ms": round(1e3 * ideal, 2),
        **medians,
        "coded_over_ideal": round(statistics.median(there["coded"]) / ideal, 4) if "coded" in there else None,
        "tdp_raw_over_coded": ratio("tdp_raw", "coded"),
        "raw_over_tdp_raw": ratio("raw", "tdp_raw"),
    }


def _notes(plan: Plan, variants: Sequence[str], why_not: str | None) -> list[str]:
    if why_not is None:
        return []
    notes = [f"the processes used the loopback, not a wire of their own: {why_not}"]
    if plan.rate is not None:
        notes.append("the kernel did not slow the wire, variants slowed themselves down")
    notes += [
        f"{name}_ms is not known, as {name} cannot be slowed down without the kernel"
        for name in plan.variants
        if name not in variants
    ]
    return notes


def _assignment(plan: Plan, variants: Sequence[str], *, shaped: bool) -> Assignment:
    rate, work = plan.rate, plan.work
    # The slowest runtime sends one message at a time, both ways in turn, and computes nothing meanwhile.
    step = work.ideal + (2 * work.micros * work.message_bytes * 8 / rate if rate else 1.0)
    pause = 1.5 * BURST * 8 / rate if rate else 0.0
    turns = (plan.rounds + _WARM_UP) * len(variants)
    return Assignment(
        rank=0,
        address=ADDRESSES[0] if shaped else "127.0.0.1",
        port=_PORT if shaped else _free_port(),
        interface=INTERFACE if shaped else "lo",
        variants=tuple(variants),
        rounds=plan.rounds,
        warm_up=_WARM_UP,
        pause=pause,
        patience=_START + _SLOWER * turns * (step + pause),
        work=work,
        throttle=None if shaped else rate,
        seed=plan.seed,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def _run(assignment: Assignment, rate: float | None, hear: Callable[[str], None], *, shaped: bool) -> None:
    module = [sys.executable, "-m", "thinpipe.bench.link_rank"]
    commands = [[*module, replace(assignment, rank=rank).text()] for rank in range(STAGES)]
    with ExitStack() as stack:
        if shaped:
            network = stack.enter_context(joined(rate))
            commands = [network.command(host, words) for host, words in enumerate(commands)]
        run_ranks(commands, hear, patience=assignment.patience)
