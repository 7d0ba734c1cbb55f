"""Runs a queue until its time is over: as many trainings side by side as gain from it, all of it saved at the end.

::

    begin                                               stop           kill     end
    |  start, resume, measure, add one, start ...       |  all save    |        |
    |<-------------------- no start after --------->|   |  and end     |  pack  |
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from thinpipe.reproduce.queue.child import Child
from thinpipe.reproduce.queue.growth import SideBySide
from thinpipe.reproduce.queue.meter import Meter, Window
from thinpipe.reproduce.queue.order import Item, Measurement, Training
from thinpipe.reproduce.queue.place import Place, Standing, State

_TRIES = 2
"""How often a row is begun that fails, in one call."""
_PAUSE = 0.2
"""Seconds between two looks at all that run."""
_AGAIN = 15.0
"""Seconds until a row is looked at again that another process trains."""


@dataclass(frozen=True)
class Deadline:
    """When what happens, in seconds of ``time.monotonic``.

    Args:
        begin: of the call.
        seconds: that it may take.
    """

    begin: float
    seconds: float

    @property
    def last_start(self) -> float:
        """After this nothing is begun: it would be stopped before it had learned anything."""
        return self.stop - min(45.0, 0.15 * self.seconds)

    @property
    def stop(self) -> float:
        """When all are asked to save and end."""
        return self.begin + self.seconds - min(30.0, 0.15 * self.seconds)

    @property
    def kill(self) -> float:
        """When those are ended that still run."""
        return self.begin + self.seconds - min(12.0, 0.06 * self.seconds)


class Watcher(Protocol):
    """Whoever shows a queue."""

    def say(self, text: str) -> None:
        """Is told that something has happened."""
        ...

    def running(self, children: Sequence[Child]) -> None:
        """Is told what runs, several times a second."""
        ...


@dataclass
class Outcome:
    """What a call has done.

    Args:
        done: what was recorded.
        failed: what ended with an error, and was not recorded.
        stopped: what was begun and is to go on.
        elsewhere: what another process was training.
        too_long: what could neither be finished in time nor carried to another machine.
        rows: samples that were trained on, and a third of those that were tested with.
    """

    done: list[Item] = field(default_factory=list)
    failed: list[Item] = field(default_factory=list)
    stopped: list[Item] = field(default_factory=list)
    elsewhere: list[Item] = field(default_factory=list)
    too_long: list[Item] = field(default_factory=list)
    rows: float = 0.0


class Runner:
    """Runs what is to be done.

    Args:
        place: where everything is.
        items: what to run, the most urgent first.
        deadline: when it has to be over.
        growth: decides how many run side by side.
        watcher: is told of everything.
        window: how long rates are measured.
        has_room: tells whether one more has room beside so many.
        per_epoch: seconds of an epoch by the names of tables, as far as they are known; it is added to.
        stays: tells whether an item's state is too large to be carried away (default: all can be, or need not be).
    """

    def __init__(
        self,
        place: Place,
        items: Sequence[Item],
        deadline: Deadline,
        growth: SideBySide,
        watcher: Watcher,
        *,
        window: Window,
        has_room: Callable[[int], bool],
        per_epoch: Mapping[str, float],
        stays: Callable[[Training], bool] = lambda _: False,
    ) -> None:
        self._place, self._deadline, self._growth, self._watcher = place, deadline, growth, watcher
        self._waiting = list(items)
        self._has_room, self._stays = has_room, stays
        self._meter = Meter(window)
        self._per_epoch = dict(per_epoch)
        self._tries: Counter[str] = Counter()
        self._busy: dict[str, float] = {}
        self._staying: set[str] = set()
        self._children: list[Child] = []
        self._has_stepped, self._start_at = False, 0.0
        self.outcome = Outcome()

    def run(self, stopped: Callable[[], bool]) -> Outcome:
        """Runs until nothing is left, the time is over, or somebody wants to stop; returns when no process is left.

        Args:
            stopped: asked whether somebody wants to.
        """
        try:
            while True:
                is_over = stopped() or time.monotonic() >= self._deadline.stop
                self._look(is_over=is_over)
                if not is_over and (not self._children or time.monotonic() >= self._start_at):
                    self._start()
                if not self._children:
                    break
                time.sleep(_PAUSE)
        finally:
            for child in self._children:
                child.kill()
        self.outcome.elsewhere = [item for item in self._waiting if str(item) in self._busy]
        return self.outcome

    def _look(self, *, is_over: bool) -> None:
        """Reads how far everything is, and takes leave of what has ended."""
        for child in list(self._children):
            status = child.status()  # before the log is read, which is then complete
            if child.tail is not None:
                before = child.tail.rows
                child.tail.read()
                self.outcome.rows += child.tail.rows - before
                self._has_stepped = self._has_stepped or child.has_stepped
            if status is not None:
                self._children.remove(child)
                self._start_at = 0.0
                self._ended(child, status)
        for child in self._children:
            if is_over or not self._comes_to_an_end(child):
                child.stop()
            if time.monotonic() >= self._deadline.kill:
                child.kill()
        self._measure()
        self._watcher.running(self._children)

    def _measure(self) -> None:
        train = all(child.is_training for child in self._children)
        tails = {each.pid: each.tail for each in self._children if each.tail is not None} if train else {}
        rate = self._meter.rate(tails)
        if not rate:
            return
        before = self._growth.wanted
        self._growth.measured(len(tails), rate)
        self._watcher.say(f"{len(tails)} side by side: {rate:,.0f} samples/s")
        if self._growth.wanted > before and not self._has_room(len(tails)):
            self._growth.stay(before)
            self._watcher.say(f"there is no memory for more than {before} side by side")

    def _start(self) -> None:
        """Begins what comes next, as long as there is something to begin and more is wanted."""
        while len(self._children) < self._growth.wanted and time.monotonic() < self._deadline.last_start:
            # The first alone: what it compiles and decodes is there for the others.
            if self._children and not self._has_stepped:
                return
            item = self._next()
            if item is None:
                self._start_at = time.monotonic() + 1
                return
            self._waiting.remove(item)
            self._children.append(self._begun(item))
            self._watcher.say(f"{item} begins")
            if isinstance(item, Measurement):
                return

    def _begun(self, item: Item) -> Child:
        words, log, epochs = self._place.words(item), None, 0
        if isinstance(item, Training):
            log, epochs = self._place.run(item).log_path, self._place.job(item).recipe.epochs
            if self._stays(item):
                self._staying.add(str(item))
        said = self._place.runs / "queue" / f"{str(item).replace(' ', '--').replace('/', '-'):.150}.log"
        return Child(item, words, said=said, log=log, epochs=epochs)

    def _next(self) -> Item | None:
        """Finds what to begin now; None if nothing can be."""
        if any(isinstance(child.item, Measurement) for child in self._children):
            return None
        for item in list(self._waiting):
            if isinstance(item, Measurement):
                if time.monotonic() + 60 * item.minutes > self._deadline.stop:
                    continue
                return None if self._children else item
            if self._busy.get(str(item), 0.0) > time.monotonic() or not self._is_free(item):
                continue
            if self._fits(item):
                return item
        return None

    def _is_free(self, item: Training) -> bool:
        """Tells whether a row is still to be trained, and no other process is at it."""
        if self._place.is_busy(item):
            if str(item) not in self._busy:
                self._watcher.say(f"{item} is left to another process, which trains it right now")
            self._busy[str(item)] = time.monotonic() + _AGAIN
            return False
        self._busy.pop(str(item), None)
        if self._place.standing(item).state is State.DONE:  # by another queue, since this one was made
            self._waiting.remove(item)
            return False
        return True

    def _fits(self, item: Training) -> bool:
        """Tells whether a row can be finished in time, or be carried away before it is."""
        if not self._stays(item):
            return True
        seconds = self._seconds_left(item, self._place.standing(item))
        return seconds is None or time.monotonic() + seconds < self._deadline.stop

    def _seconds_left(self, item: Training, standing: Standing) -> float | None:
        per_epoch = self._per_epoch.get(item.table.name)
        return None if per_epoch is None else per_epoch * (standing.epochs - standing.tested)

    def _comes_to_an_end(self, child: Child) -> bool:
        """Tells whether a child may go on: not if it can neither end in time nor be carried away, as it turns out."""
        item, tail = child.item, child.tail
        if not isinstance(item, Training) or tail is None or child.is_asked:
            return True
        if (seconds := tail.seconds_per_epoch) is None:
            return True
        self._per_epoch[item.table.name] = seconds
        left = seconds * (child.epochs - tail.tested)
        if str(item) not in self._staying or time.monotonic() + left < self._deadline.stop:
            return True
        self.outcome.too_long.append(item)
        self._watcher.say(f"{item} would not end in time, and is too large to be carried; another takes its place")
        return False

    def _ended(self, child: Child, status: int) -> None:
        """Finds out what has become of an item whose process has ended."""
        item = child.item
        if self._place.standing(item).state is State.DONE:
            self.outcome.done.append(item)
            self._watcher.say(f"{item} is done{self._result(item)}")
        elif child.is_asked or child.is_killed:
            if item not in self.outcome.too_long:
                self.outcome.stopped.append(item)
        elif status == 0:  # it found the row in another process's hands
            self._waiting.append(item)
            self._busy[str(item)] = time.monotonic() + _AGAIN
        else:
            self._failed(child, status)

    def _result(self, item: Item) -> str:
        record = self._place.standing(item).record
        if record is None or not isinstance(item, Training):
            return ""
        measure = item.row.work.measure
        value = record.results.get(measure)
        return "" if value is None else f": {measure} {100 * value:.2f}"

    def _failed(self, child: Child, status: int) -> None:
        item = child.item
        self._watcher.say(f"{item} failed with status {status}:\n{child.last_words()}")
        if child.lacked_memory() and self._children:
            self._growth.stay(len(self._children))
            self._waiting.insert(0, item)
            return
        self._tries[str(item)] += 1
        if self._tries[str(item)] < _TRIES:
            self._waiting.append(item)
        else:
            self.outcome.failed.append(item)
