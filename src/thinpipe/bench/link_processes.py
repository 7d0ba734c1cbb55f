"""Runs the ranks of a benchmark as processes, and leaves none of them behind."""

from __future__ import annotations

import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO

from thinpipe.errors import ThinpipeError

LOOK = 0.2
"""Seconds between two looks at who still runs, and those that the others have to say what they saw of a failure."""

_TAIL = 15


class RankError(ThinpipeError, RuntimeError):
    """A rank failed or fell silent; the message ends with what the ranks said last."""


class Rank:
    """A process that runs from now on.

    Args:
        number: its rank.
        command: what it runs.
        errors: the file that gets its standard error.
        heard: whether somebody listens to its standard output.
    """

    def __init__(self, number: int, command: Sequence[str], errors: IO[bytes], *, heard: bool) -> None:
        self.number = number
        self.errors = errors
        # It ends when its input does, as it does with this process. A session of its own keeps Ctrl-C from it, so that
        # what a rank complains of is never the interrupt itself.
        self.process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if heard else subprocess.DEVNULL,
            stderr=errors,
            bufsize=0,  # or a line that came with another would wait, unseen, for a third
            start_new_session=True,
        )

    @property
    def voice(self) -> IO[bytes]:
        """Its standard output, of a rank that is heard."""
        assert self.process.stdout is not None
        return self.process.stdout

    def line(self, patience: float) -> bytes:
        """Waits for the next line that a heard rank says; an empty one is its end.

        Raises:
            TimeoutError: it said nothing for so many seconds.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self.voice, selectors.EVENT_READ)
            if not selector.select(patience):
                raise TimeoutError
        # Whole lines, each flushed at once, are all that it writes.
        return self.voice.readline()

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


@contextmanager
def started(commands: Sequence[Sequence[str]], *, heard: Sequence[int]) -> Iterator[list[Rank]]:
    """Starts a rank for each command, and ends them all, whatever happens.

    Args:
        commands: one for each rank.
        heard: the ranks whose standard output is listened to.
    """
    with ExitStack() as alive:
        ranks = []
        for number, command in enumerate(commands):
            errors = alive.enter_context(tempfile.TemporaryFile())
            ranks.append(Rank(number, command, errors, heard=number in heard))
            alive.callback(ranks[-1].end)
        yield ranks


def told(what: str, ranks: Sequence[Rank]) -> RankError:
    """Makes the error of a failure, with what all ranks said last."""
    return RankError("\n".join([what, *(rank.story() for rank in ranks)]))


def run_ranks(commands: Sequence[Sequence[str]], hear: Callable[[str], None], *, patience: float) -> None:
    """Runs all ranks to their end.

    Args:
        commands: one for each rank.
        hear: called with each line that rank 0 writes.
        patience: seconds to wait for all of them.

    Raises:
        RankError: one failed, or it took longer.
    """
    with started(commands, heard=[0]) as ranks:
        _listen(ranks, hear, time.monotonic() + patience, patience)


def _listen(ranks: Sequence[Rank], hear: Callable[[str], None], deadline: float, patience: float) -> None:
    voice = ranks[0].voice
    with selectors.DefaultSelector() as selector:
        selector.register(voice, selectors.EVENT_READ)
        open_still = True
        while open_still or any(rank.process.poll() is None for rank in ranks):
            if open_still and selector.select(LOOK):
                # Whole lines, each flushed at once, are all that rank 0 writes: reading one does not wait for long.
                if line := voice.readline():
                    hear(line.decode())
                else:
                    open_still = False
            elif not open_still:
                time.sleep(LOOK / 10)
            _check(ranks, deadline, patience)
    _check(ranks, deadline, patience)


def _check(ranks: Sequence[Rank], deadline: float, patience: float) -> None:
    failed = [rank for rank in ranks if rank.process.poll() not in (None, 0)]
    if not failed and time.monotonic() < deadline:
        return
    if failed:
        time.sleep(LOOK)  # the other rank may be about to say what it saw of it
    raise told("a rank failed" if failed else f"no end after {patience:.0f} s", ranks)
