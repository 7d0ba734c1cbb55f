"""Runs rows: one server and one client for all of them, in processes of their own, and a session for each row.

::

    parent   order ──► client ══ wire ══ server      a row: 3 batches to warm up, and some that count
               ◄── cost, cost, ..., done
"""

from __future__ import annotations

import json
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
from thinpipe.remote.cost import StepCost
from thinpipe.reproduce.two_machines import computation, offers
from thinpipe.reproduce.two_machines.client import Order, Seat
from thinpipe.reproduce.two_machines.computation import NOT_IDLE, Computation, is_less
from thinpipe.reproduce.two_machines.documents import CUT, printed, step_size
from thinpipe.reproduce.two_machines.figures import figures, samples
from thinpipe.reproduce.two_machines.plan import BENCH, WARM_UP, Plan, ReproduceError, settings
from thinpipe.reproduce.two_machines.row import Row
from thinpipe.reproduce.two_machines.server import Assignment
from thinpipe.reproduce.two_machines.wire import Wire
from thinpipe.reproduce.two_machines.work import Work

_PACKAGE = "thinpipe.reproduce.two_machines"
_START = 180.0
_BATCH = 240.0
_SLOWER = 4.0
_BYTES_A_ROW = 2_000_000
"""More than either cut of either model sends for a row, each way."""
DRY = "one number a row on the wire, everything computed"
"""How the computation time is measured."""


@dataclass
class _Company:
    """The two processes, and what has been found out with them."""

    plan: Plan
    wire: Wire
    ranks: Sequence[Rank]
    folder: Path | None
    is_again: bool
    address: str = ""
    device: str = ""
    notes: dict[Work, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._computation = Computation(self._alone, self._settings_alone, self.folder, is_again=self.is_again)

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
        plan, work = self.plan, self.plan.work(row)
        alone, notes = self._computation.of(row), []
        self.wire.shape(row.rate)
        costs = list(self._costs(self._order(work, row, plan.batches), _patience(plan, row)))
        seconds = [cost.seconds for cost in costs]
        if is_less(seconds, alone):
            alone = self._computation.again(row)
            notes += [NOT_IDLE] if is_less(seconds, alone) else []
        theirs = None if plan.tiny or row.cut != CUT else printed(row.codec, row.bottleneck, row.chunks)
        return Record(
            BENCH,
            figures(costs, alone, work.row_bytes()),
            samples(costs, alone),
            settings(plan, row, self.wire) | {"server_device": self.device, "computation": DRY},
            Machine.current("pyzmq"),
            row=row.name,
            published={} if theirs is None else theirs.figures(),
            notes=[*notes, *filter(None, [self.notes.get(plan.work(row, dry=True))])],
        )

    def _order(self, work: Work, row: Row, batches: int) -> Order:
        return Order(
            work=work,
            address=self.address,
            codecs=(None, None) if work.dry else row.codecs,
            chunks=row.chunks,
            lr=step_size(row.chunks),
            bandwidth=None if work.dry else self.wire.emulated(row.rate),
            batch=self.plan.batch,
            batches=batches,
            warm_up=WARM_UP,
        )

    def _alone(self, row: Row) -> list[float]:
        """Measures batches with nothing on the wire; none where the server does not offer that."""
        work = self.plan.work(row, dry=True)
        self.wire.shape(None)
        try:
            return [cost.seconds for cost in self._costs(self._order(work, row, computation.BATCHES), _BATCH)]
        except _Refused:
            name, _, place = work.factory.rpartition(":")
            how = (
                f"start it with --offer {name}:{place}" if hasattr(offers, place) else "it is no offer of this package"
            )
            self.notes[work] = f"the computation time is not known, as the server does not offer it; {how}"
            return []

    def _settings_alone(self, row: Row) -> dict[str, Any]:
        plain = settings(self.plan, row, self.wire) | {"server_device": self.device}
        left = ("bandwidth", "bits_per_second", "codec", "batches")
        return {name: value for name, value in plain.items() if name not in left} | {"computation": DRY}

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


def measured(
    plan: Plan, rows: Iterable[Row], wire: Wire, keep: Callable[[Record], None], *, folder: Path | None, again: bool
) -> None:
    """Measures rows.

    Args:
        plan: how.
        rows: which.
        wire: over what.
        keep: called with each as soon as it is measured.
        folder: of the records, where that of the computation is kept, too; None for none.
        again: whether the computation is measured even if it is recorded.

    Raises:
        ReproduceError, RankError: a row could not be; what came before it is kept.
    """
    wanted = list(rows)
    if not wanted:
        return
    with _company(plan, wanted, wire, folder, again=again) as company:
        company.meet()
        for row in wanted:
            try:
                record = company.record(row)
            except ReproduceError as error:
                raise ReproduceError(f"row {row.name}: {error}") from error
            keep(record)


@contextmanager
def _company(plan: Plan, rows: Sequence[Row], wire: Wire, folder: Path | None, *, again: bool) -> Iterator[_Company]:
    module = [sys.executable, "-m"]
    keys, commands = wire.keys, []
    if wire.listen is not None:
        works = dict.fromkeys(plan.work(row, dry=dry) for row in rows for dry in (False, True))
        assignment = Assignment(
            listen=wire.listen,
            device=plan.device,
            threads=plan.server_threads,
            works=tuple(works),
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
        yield _Company(plan, wire, ranks, folder, again)
