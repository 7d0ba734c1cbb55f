"""A call of the queue from its beginning to its end: unpack, look what is to be done, measure, train, record, pack."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from thinpipe.reproduce.queue.account import BENCH, Account, found_before
from thinpipe.reproduce.queue.bare import BareError, bare_rate
from thinpipe.reproduce.queue.growth import SideBySide
from thinpipe.reproduce.queue.meter import Window
from thinpipe.reproduce.queue.order import Item, Training
from thinpipe.reproduce.queue.place import Place, Standing, State, seconds_per_epoch
from thinpipe.reproduce.queue.room import room_on
from thinpipe.reproduce.queue.runner import Deadline, Outcome, Runner
from thinpipe.reproduce.queue.show import Shown, show_queue
from thinpipe.reproduce.queue.travel import Carrier
from thinpipe.train.stop import Stop

_WIDTH = 160
_SHARE = 0.3
"""Of the time, what the measurement of the bare model may take."""
_TINY_WINDOW = Window(settle=0.5, length=2.0)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of the queue.

    Args:
        place: where everything is.
        items: what to run, the most urgent first.
        deadline: when it has to be over.
        carrier: takes records and runs from machine to machine; None if nobody does.
        side_by_side: how many are trained at once; None to find it out.
        measures_bare: whether the bare model is measured first.
    """

    place: Place
    items: Sequence[Item]
    deadline: Deadline
    carrier: Carrier | None
    side_by_side: int | None
    measures_bare: bool

    def listed(self) -> int:
        """Shows the queue, and returns the exit status."""
        console = Console(highlight=False)
        console = console if console.is_terminal else Console(highlight=False, width=_WIDTH)
        standings = self._standings()
        show_queue(console, standings, _per_epoch(standings))
        return 0

    def run(self) -> int:
        """Runs the queue, and returns the exit status.

        Raises:
            ThinpipeError: nothing can be run at all.
        """
        console = Console(stderr=True, highlight=False, force_terminal=None if sys.stderr.isatty() else False)
        # From the first: whoever wants to stop wants what is there packed.
        with Stop("saving; again to stop at once") as stop, Shown(console) as shown:
            if self.carrier is not None:
                self.carrier.unpack()
            standings = self._standings()
            refused = self._tell(shown, standings)
            waiting = _waiting(standings)
            failed = 0
            try:
                if waiting:
                    account = self._trained(standings, waiting, shown, stop)
                    account.record(self.place).save(self.place.results)
                    failed = len(account.outcome.failed)
                    _sum_up(shown, account.outcome)
                else:
                    shown.say("there is nothing left that can be done" if refused else "everything is done")
            finally:
                self._pack(shown)
        return stop.status or (1 if refused or failed else 0)

    def _standings(self) -> dict[Item, Standing]:
        self.place.prepare()
        return {item: self.place.standing(item) for item in self.items}

    def _tell(self, shown: Shown, standings: Mapping[Item, Standing]) -> int:
        """Says what is not run, and why; returns how many rows are refused."""
        for note in self.carrier.notes if self.carrier is not None else ():
            shown.say(f"warning: {note}")
        skipped: dict[str, list[Item]] = {}
        refused = 0
        for item, found in standings.items():
            if found.state is State.REFUSED:
                refused += 1
                shown.say(f"{item} is refused: {found.why}")
            elif found.state is State.SKIPPED:
                skipped.setdefault(found.why, []).append(item)
        for why, items in skipped.items():
            shown.say(f"{len(items)} are skipped, {items[0]} the first of them: {why}")
        return refused

    def _trained(
        self, standings: Mapping[Item, Standing], waiting: Sequence[Item], shown: Shown, stop: Stop
    ) -> Account:
        """Trains until the time is over or nothing is left."""
        first = next((item for item in waiting if isinstance(item, Training)), None)
        what = BENCH if first is None else first.table.name
        growth = found_before(self.place, what)
        if self.side_by_side is not None:
            growth = SideBySide(self.side_by_side, settled=True)
        bare = self._bare(first, shown) if first is not None and self.measures_bare and not stop.wanted else None
        runner = Runner(
            self.place,
            waiting,
            self.deadline,
            growth,
            shown,
            window=_TINY_WINDOW if self.place.how.tiny else Window(),
            has_room=room_on(self.place.how.device),
            per_epoch=_per_epoch(standings),
            stays=self._stays,
        )
        began = time.monotonic()
        outcome = runner.run(lambda: stop.wanted)
        return Account(
            outcome=outcome,
            growth=growth,
            seconds=time.monotonic() - began,
            bare=bare,
            what=what,
            fixed=self.side_by_side is not None,
        )

    def _bare(self, first: Training, shown: Shown) -> float | None:
        shown.say(f"measuring the bare model of {first.table.name}")
        try:
            rate = bare_rate(self.place, first, seconds=_SHARE * self.deadline.seconds)
        except BareError as error:
            shown.say(f"the bare model is not measured: {error}")
            return None
        shown.say(f"the bare model: {rate:,.0f} samples/s")
        return rate

    def _stays(self, item: Training) -> bool:
        """Tells whether a row has to be finished here, since its state is too large to be carried away."""
        return self.carrier is not None and self.place.state_bytes(item) > self.carrier.room

    def _pack(self, shown: Shown) -> None:
        if self.carrier is None:
            return
        told = len(self.carrier.notes)
        files = self.carrier.pack()
        for note in self.carrier.notes[told:]:
            shown.say(f"warning: {note}")
        size = sum(path.stat().st_size for path in files) / (1 << 20)
        shown.say(f"packed into {self.carrier.folder}: {len(files)} files, {size:.1f} MiB")


def _per_epoch(standings: Mapping[Item, Standing]) -> dict[str, float]:
    return seconds_per_epoch(found.record for found in standings.values() if found.record is not None)


def _waiting(standings: Mapping[Item, Standing]) -> list[Item]:
    """Lists what is to be run: what is begun first, so that little has to be carried."""
    begun = [item for item, found in standings.items() if found.state is State.BEGUN]
    return [*begun, *(item for item, found in standings.items() if found.state is State.TO_DO)]


def _sum_up(shown: Shown, outcome: Outcome) -> None:
    parts = {
        "done": outcome.done,
        "to go on": outcome.stopped,
        "failed": outcome.failed,
        "left to another process": outcome.elsewhere,
        "too long for this call": outcome.too_long,
    }
    said = ", ".join(f"{len(items)} {name}" for name, items in parts.items() if items)
    shown.say(said or "nothing was begun")
