"""The record of a call: what it did, how fast, and how many trainings side by side this machine gains from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from thinpipe.bench.record import Machine, Record
from thinpipe.bench.sheet import ratio
from thinpipe.errors import ThinpipeError
from thinpipe.reproduce.queue.growth import SideBySide
from thinpipe.reproduce.queue.place import Place
from thinpipe.reproduce.queue.runner import Outcome

BENCH = "queue"
_RATE = "samples_per_second"


@dataclass(frozen=True, kw_only=True)
class Account:
    """What is known of a call when it is over.

    Args:
        outcome: what it did.
        growth: what was measured.
        seconds: that it took.
        bare: samples a second of the bare model; None if they were not measured.
        what: the table of the first row, since a rate is of what was trained.
        fixed: whether somebody had said how many run side by side.
    """

    outcome: Outcome
    growth: SideBySide
    seconds: float
    bare: float | None
    what: str
    fixed: bool

    def record(self, place: Place) -> Record:
        """Makes the record."""
        rates, best, outcome = self.growth.rates(), self.growth.best, self.outcome
        fastest = None if best is None else rates[best]
        results: dict[str, float | None] = {
            "seconds": self.seconds,
            "done": len(outcome.done),
            "stopped": len(outcome.stopped),
            "failed": len(outcome.failed),
            "rows": outcome.rows,
            _RATE: outcome.rows / self.seconds,
            "side_by_side": best,
            **{f"{_RATE}_of_{count}": rate for count, rate in rates.items()},
            "of_one_by_one": ratio(fastest, rates.get(1)),
            "bare_samples_per_second": self.bare,
            "of_bare": ratio(fastest, self.bare),
        }
        settings = {
            "what": self.what,
            "device": place.how.device,
            "compiled": place.how.compile,
            "tiny": place.how.tiny,
            "fixed": self.fixed,
            "settled": self.growth.settled,
            "done": list(map(str, outcome.done)),
            "stopped": list(map(str, outcome.stopped)),
            "failed": list(map(str, outcome.failed)),
        }
        name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
        return Record(BENCH, results, {}, settings, Machine.current(), row=name)


def found_before(place: Place, what: str) -> SideBySide:
    """Begins with as many side by side as an earlier call found to be fastest, on a machine of this kind.

    Args:
        place: with the records of earlier calls.
        what: the table of the first row; a rate of another says nothing.
    """
    machine = Machine.current()
    for path in sorted((place.results / BENCH).glob("*.json"), reverse=True):
        try:
            record = Record.load(path)
        except ThinpipeError:
            continue
        same = (record.machine.gpus, record.machine.cores) == (machine.gpus, machine.cores)
        said = record.settings
        alike = (said.get("what"), said.get("device"), said.get("compiled"), said.get("tiny")) == (
            what,
            place.how.device,
            place.how.compile,
            place.how.tiny,
        )
        best = record.results.get("side_by_side")
        if same and alike and best and not said.get("fixed") and f"{_RATE}_of_1" in record.results:
            return SideBySide(int(best), settled=bool(said.get("settled")))
    return SideBySide()
