"""Runs the ranks of ``thinpipe bench link`` to their end, and leaves none of them behind."""

from __future__ import annotations

import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import IO

from thinpipe.errors import ThinpipeError

_TAIL = 15
_LOOK = 0.2


class RankError(ThinpipeError, RuntimeError):
    """A rank failed or fell silent; the message ends with what the ranks said last."""


class Rank:
    """A process that runs from now on.

    Args:
        number: its rank; rank 0's standard output is listened to.
        command: what it runs.
        errors: the file that gets its standard error.
    """

    def __init__(self, number: int, command: Sequence[str], errors: IO[bytes]) -> None:
        self.number = number
        self.errors = errors
        # Its input is never written to: it ends when this process does. A session of its own keeps Ctrl-C from it, so
        # that what a rank complains of is never the interrupt itself.
        self.process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if number == 0 else subprocess.DEVNULL,
            stderr=errors,
            bufsize=0,  # or a line that came with another would wait, unseen, for a third
            start_new_session=True,
        )

    def end(self) -> None:
        """Ends it, if it has not ended, and lets go of its pipes."""
        self.process.kill()
        self.process.communicate()

    def story(self) -> str:
        """Tells how it ended, and the last lines of its standard error."""
        code = self.process.poll()
        self.errors.seek(0)
        last = self.errors.read().decode(errors="replace").splitlines()[-_TAIL:]
        fate = "still ran" if code is None else f"ended with code {code}"
        return "\n".join([f"rank {self.number} {fate}, its last words:", *(last or ["(none)"])])


def run_ranks(commands: Sequence[Sequence[str]], hear: Callable[[str], None], *, patience: float) -> None:
    """Runs all ranks to their end.

    Args:
        commands: one for each rank.
        hear: called with each line that rank 0 writes.
        patience: seconds to wait for all of them.

    Raises:
        RankError: one failed, or it took longer.
    """
    with ExitStack() as alive:
        ranks = []
        for number, command in enumerate(commands):
            errors = alive.enter_context(tempfile.TemporaryFile())
            ranks.append(Rank(number, command, errors))
            alive.callback(ranks[-1].end)
        _listen(ranks, hear, time.monotonic() + patience, patience)


def _listen(ranks: Sequence[Rank], hear: Callable[[str], None], deadline: float, patience: float) -> None:
    voice = ranks[0].process.stdout
    assert voice is not None
    with selectors.DefaultSelector() as selector:
        selector.register(voice, selectors.EVENT_READ)
        open_still = True
        while open_still or any(rank.process.poll() is None for rank in ranks):
            if open_still and selector.select(_LOOK):
                # Whole lines, each flushed at once, are all that rank 0 writes: reading one does not wait for long.
                if line := voice.readline():
                    hear(line.decode())
                else:
                    open_still = False
            elif not open_still:
                time.sleep(_LOOK / 10)
            _check(ranks, deadline, patience)
    _check(ranks, deadline, patience)


def _check(ranks: Sequence[Rank], deadline: float, patience: float) -> None:
    failed = [rank for rank in ranks if rank.process.poll() not in (None, 0)]
    if not failed and time.monotonic() < deadline:
        return
    if failed:
        time.sleep(_LOOK)  # the other rank may be about to say what it saw of it
    stories = "\n".join(rank.story() for rank in ranks)
    raise RankError(f"a rank failed\n{stories}" if failed else f"no end after {patience:.0f} s\n{stories}")
