"""How fast trainings are, read from their logs while they write them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from thinpipe.finite import loads

TEST = 1 / 3
"""What a row of a test counts beside one that is trained on: it has no backward."""


class Tail:
    """Follows the log of a run from the moment when a process opens it to write.

    Whoever goes on with a run writes its log anew, without the steps that it will take again; so what is in a log of
    before does not count, and what is in the new one at first was written before, too.

    Args:
        path: of the log.
        clock: in seconds (default: that of the system).
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._file, self._at = _number(path), 0
        self._follows = self._file is None
        self._epochs: list[float] = []
        self.rows = 0.0
        self.steps = 0
        self.epoch = self.tested = 0
        self.loss: float | None = None

    @property
    def seconds_per_epoch(self) -> float | None:
        """How long an epoch takes, with its test; None before one was seen from its beginning to its end."""
        begin, *ends = self._epochs or [0.0]
        return (ends[-1] - begin) / len(ends) if ends else None

    def read(self) -> None:
        """Reads what was added."""
        number = _number(self._path)
        if number is None or (not self._follows and number == self._file):
            return
        with suppress(FileNotFoundError), self._path.open("rb") as log:
            if number != self._file:
                self._file, self._at = number, 0
            log.seek(self._at)
            added = log.read()
            whole = added.rfind(b"\n") + 1
            self._at += whole
            for line in added[:whole].splitlines():
                with suppress(ValueError, KeyError, TypeError):  # one that is damaged is for whoever reads the run
                    self._count(line, counted=self._follows)
            self._follows = True

    def _count(self, line: bytes, *, counted: bool) -> None:
        said = loads(line)
        if said["kind"] == "step":
            self.epoch, self.loss = said["epoch"], said["loss"]
            if counted and not said["step"]:
                self._epochs.append(self._clock())
            self.steps += counted
            self.rows += said["rows"] * counted
        elif said["kind"] == "evaluation":
            self.tested = said["epoch"]
            if counted:
                self._epochs.append(self._clock())
            self.rows += TEST * said["rows"] * counted


def _number(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


@dataclass(frozen=True)
class Window:
    """How long is measured.

    Args:
        settle: seconds that a training has had steps for before it counts.
        length: seconds of a measurement.
    """

    settle: float = 5.0
    length: float = 20.0


class Meter:
    """Measures the samples a second of all that train, while these are the same ones.

    ::

        first   steps |settle|........................................
        second              starts | steps |settle|<---- length ---->|      a rate of two

    Args:
        window: how long.
        clock: in seconds (default: that of the system).
    """

    def __init__(self, window: Window, clock: Callable[[], float] = time.monotonic) -> None:
        self._window, self._clock = window, clock
        self._stepping: dict[int, float] = {}
        self._who: frozenset[int] = frozenset()
        self._since, self._rows = 0.0, 0.0

    def rate(self, tails: Mapping[int, Tail]) -> float | None:
        """Tells the rate of all together once a window is over; None before that.

        Args:
            tails: the logs of all that run, of those that are still starting, too, by the numbers of their processes;
                none if one of them has ended.
        """
        now, rows = self._clock(), sum(tail.rows for tail in tails.values())
        for who, tail in tails.items():
            if tail.steps:
                self._stepping.setdefault(who, now)
        steady = all(now - self._stepping.get(who, now) >= self._window.settle for who in tails)
        if not tails or not steady or self._who != frozenset(tails):
            self._who = frozenset(tails) if steady else frozenset()
            self._since, self._rows = now, rows
            return None
        if now - self._since < self._window.length:
            return None
        rate = (rows - self._rows) / (now - self._since)
        self._since, self._rows = now, rows
        return rate
