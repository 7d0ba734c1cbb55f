"""Runs rows: one server and one client for all of them, in processes of their own, and a session for each row.

::

    parent   order ──► client ══ wire ══ server      a row: 1 batch to warm up, and some that count
               ◄── cost, cost, ..., done
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thinpipe.bench.link_processes import LOOK, Rank, started, told
from thinpipe.bench.record import Machine, Record
from thinpipe.errors import ThinpipeError
from thinpipe.remote.cost import StepCost
from thinpipe.reproduce.two_machines.client import SCHEDULE, Order, Seat
from thinpipe.reproduce.two_machines.documents import printed
from thinpipe.reproduce.two_machines.figures import figures, samples
from thinpipe.reproduce.two_machines.row import Row
from thinpipe.reproduce.two_machines.server import Assignment
from thinpipe.reproduce.two_machines.wire import ADDRESS, Wire
from thinpipe.reproduce.two_machines.work import Work

BENCH = "two-machines"
WARM_UP = 1
_PACKAGE = "thinpipe.reproduce.two_machines"
_START = 180.0
_BATCH = 240.0
_SLOWER = 4.0
_BYTES_A_ROW = 2_000_000
"""More than either cut of either model sends for a row, each way."""

DRY = "one number a row on the wire, everything computed"
"""How the computation time is measured."""


class ReproduceError(ThinpipeError, RuntimeError):
    """A row could not be measured; those before it are."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run.

    Args:
        rows: in order.
        tiny: whether the small model is trained.
        batch: rows of a batch.
        batches: how many of them count, after one that does not.
        device: of the server; None for a GPU, if there is one.
        client_threads: of the client's computation.
        server_threads: of the server's, on a CPU.
        seed: of weights and inputs.
    """

    rows: tuple[Row, ...]
    tiny: bool
    batch: int
    batches: int
    device: str | None
    client_threads: int
    server_threads: int
    seed: int

    def work(self, cut: str, *, dry: bool = False) -> Work:
        """Tells what is trained."""
        return Work(cut=cut, tiny=self.tiny, dry=dry, seed=self.seed)


def threads(asked: int | None, *, shared: bool) -> tuple[int, int]:
    """Deals this machine's cores out to client and server.

    Args:
        asked: what the client is to have (default: half of them if they are shared, else all).
        shared: whether the server computes on them, too.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    client = asked or (max(1, cores // 2) if shared else cores)
    return client, max(1, cores - client) if shared else 1


@dataclass
class _Company:
    """The two processes, and what has been found out with them."""

    plan: Plan
    wire: Wire
    ranks: Sequence[Rank]
    address: str = ""
    device: str = ""
    dry: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    notes: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def client(self) -> Rank:
        return self.ranks[-1]

    def meet(self) -> None:
        """Waits until both are there."""
        if self.wire.listen is not None:
            heard = self._hear(self.ranks[0], _START)
            self.address, self.device = heard["address"], heard["device"]
        else:
            assert self.wire.address is not None
            self.address, self.device = self.wire.address, "not known"
        self._hear(self.client, _START)

    def record(self, row: Row) -> Record:
        """Measures a row."""
        plan, key = self.plan, (row.cut, row.chunks)
        self.wire.shape(row.rate)
        if key not in self.dry:
            self.dry[key] = self._computation(*key)
        costs = list(self._costs(self._order(plan.work(row.cut), row), _patience(plan, row)))
        theirs = None if plan.tiny or row.cut != "documents" else printed(row.codec, row.chunks)
        return Record(
            BENCH,
            figures(costs, self.dry[key]),
            samples(costs, self.dry[key]),
            settings(plan, row, self.wire) | {"server_device": self.device, "computation": DRY},
            Machine.current("pyzmq"),
            row=row.name,
            published={} if theirs is None else theirs.figures(),
            notes=[self.notes[key]] if key in self.notes else [],
        )

    def _order(self, work: Work, row: Row) -> Order:
        return Order(
            work=work,
            address=self.address,
            codecs=(None, None) if work.dry else row.codecs,
            chunks=row.chunks,
            bandwidth=None if work.dry else self.wire.emulated(row.rate),
            batch=self.plan.batch,
            batches=self.plan.batches,
            warm_up=WARM_UP,
        )

    def _computation(self, cut: str, chunks: int) -> list[float]:
        """Measures batches with nothing on the wire; none where the server does not offer that."""
        work = self.plan.work(cut, dry=True)
        try:
            order = self._order(work, Row("full", cut, "none", chunks))
            return [cost.seconds for cost in self._costs(order, _BATCH)]
        except _Refused:
            self.notes[cut, chunks] = (
                "the computation time is not known, as the server does not offer it; start it with "
                f"--offer {work.factory}"
            )
            return []

    def _costs(self, order: Order, patience: float) -> Iterator[StepCost]:
        assert self.client.process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone, which its answer will tell
            self.client.process.stdin.write(f"{order.text()}\n".encode())
        while "done" not in (heard := self._hear(self.client, patience)):
            if "failed" in heard:
                raise _failure(order.work, heard)
            if heard["counted"]:
                yield StepCost.from_json(heard["cost"])

    def _hear(self, rank: Rank, patience: float) -> dict[str, Any]:
        try:
            line = rank.line(patience)
        except TimeoutError as error:
            raise told(f"{self._names} no word in {patience:.0f} s", self.ranks) from error
        if not line:
            with suppress(subprocess.TimeoutExpired):  # its output ends a moment before it does
                rank.process.wait(LOOK)
            time.sleep(LOOK)  # the other one may be about to say what it saw of it
            raise told(f"{self._names} a process failed", self.ranks)
        heard: dict[str, Any] = json.loads(line)
        return heard

    @property
    def _names(self) -> str:
        return "rank 0 is the server, rank 1 the client;" if len(self.ranks) > 1 else "rank 0 is the client;"


class _Refused(ReproduceError):
    """The server does not offer what is asked for."""


def _failure(work: Work, heard: dict[str, Any]) -> ReproduceError:
    if heard["failed"] == "RefusedError" and "offered" in heard["reason"] and (work.tiny or work.dry):
        return _Refused(f"{heard['reason']}; start the server with --offer {work.factory}")
    return ReproduceError(f"{heard['failed']}: {heard['reason']}")


def _patience(plan: Plan, row: Row) -> float:
    """Tells how long a batch may take at most; the client itself notices sooner that nobody answers."""
    bits = 2 * 8 * _BYTES_A_ROW * plan.batch
    return _BATCH + (_SLOWER * bits / row.rate if row.rate else 0.0)


def settings(plan: Plan, row: Row, wire: Wire) -> dict[str, Any]:
    """Lists what a row's figures depend on, apart from the machine; rows that are alike in this are the same row."""
    return {
        "bandwidth": row.bandwidth,
        "bits_per_second": row.rate,
        "wire": wire.name,
        "encrypted": wire.keys is not None,
        "cut": row.cut,
        "codec": row.codec,
        "chunks": row.chunks,
        "schedule": SCHEDULE,
        "tiny": plan.tiny,
        "pixels": plan.work(row.cut).pixels,
        "batch": plan.batch,
        "batches": plan.batches,
        "warm_up": WARM_UP,
        "device": plan.device,
        "client_threads": plan.client_threads,
        "server_threads": plan.server_threads if wire.name != ADDRESS else None,
        "seed": plan.seed,
    }


def recorded(plan: Plan, row: Row, wire: Wire, folder: Path) -> Record | None:
    """Finds a row that was measured before, in the same way.

    Raises:
        ReproduceError: it was measured in another way, and would be lost.
    """
    path = folder / BENCH / f"{row.name}.json"
    if not path.exists():
        return None
    record = Record.load(path)
    for name, now in settings(plan, row, wire).items():
        before = record.settings.get(name)
        if name != "batches" and before != now:
            raise ReproduceError(
                f"{path} was recorded with {name}={before}, and it is {now} now; choose another --output, or replace "
                "it with --again"
            )
    return record


def measured(plan: Plan, rows: Iterable[Row], wire: Wire, keep: Callable[[Record], None]) -> None:
    """Measures rows.

    Args:
        plan: how.
        rows: which.
        wire: over what.
        keep: called with each as soon as it is measured.

    Raises:
        ReproduceError, RankError: a row could not be; what came before it is kept.
    """
    wanted = list(rows)
    if not wanted:
        return
    with _company(plan, wanted, wire) as company:
        company.meet()
        for row in wanted:
            try:
                record = company.record(row)
            except ReproduceError as error:
                raise ReproduceError(f"row {row.name}: {error}") from error
            keep(record)


@contextmanager
def _company(plan: Plan, rows: Sequence[Row], wire: Wire) -> Iterator[_Company]:
    module = [sys.executable, "-m"]
    keys, commands = wire.keys, []
    if wire.listen is not None:
        works = (plan.work(cut, dry=dry) for cut in dict.fromkeys(row.cut for row in rows) for dry in (False, True))
        assignment = Assignment(
            listen=wire.listen,
            works=tuple(works),
            device=plan.device,
            threads=plan.server_threads,
            keys=None if keys is None else str(Path(keys.key).parent),
        )
        commands.append(wire.command(0, [*module, f"{_PACKAGE}.server", assignment.text()]))
    seat = Seat(
        threads=plan.client_threads,
        key=None if keys is None else keys.key,
        server=None if keys is None else keys.server,
    )
    commands.append(wire.command(1, [*module, f"{_PACKAGE}.client", seat.text()]))
    with started(commands, heard=range(len(commands))) as ranks:
        yield _Company(plan, wire, ranks)
