"""The threads of a pipe: one for each stage, started at the first step and living as long as the pipe.

The caller hands every thread its part of a step and waits. Whatever a part raises, ``SystemExit`` and
``KeyboardInterrupt`` included, is raised again in the caller, after all threads have let go of the step; so the pipe
can be used again at once, and no thread is lost. A layer may take as long as it needs, but not in silence: the caller
says in the log what every stage is doing when a step takes unusually long.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from thinpipe.errors import WorkerLost
from thinpipe.links import Closed

Job: TypeAlias = Callable[[], None]

_log = logging.getLogger("thinpipe")

_PATIENCE = 1.0
"""Seconds between two looks at whether the threads are still alive."""

SILENCE = 60.0
"""Seconds a step may take before the log says what it is doing; then twice as long, and so on."""


class _Step:
    """The threads' parts of one step, as the caller waits for them."""

    def __init__(self, parts: int) -> None:
        self._left = parts
        self._changed = threading.Condition()
        self.failure: BaseException | None = None

    def done(self, failure: BaseException | None) -> None:
        with self._changed:
            # `Closed` is only the echo of a failure elsewhere.
            if self.failure is None and not isinstance(failure, Closed):
                self.failure = failure
            self._left -= 1
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._left == 0, seconds)


_Inbox: TypeAlias = "queue.SimpleQueue[tuple[Job, Callable[[], None], _Step] | None]"


def _serve(inbox: _Inbox) -> None:
    """Does jobs until told to stop. Holds no job, and so no tensor, while it waits for the next."""
    while (task := inbox.get()) is not None:
        job, stop_others, step = task
        failure: BaseException | None = None
        try:
            job()
        except BaseException as error:
            failure = error
            stop_others()
        del task, job, stop_others
        step.done(failure)
        del step, failure


class Crew:
    """The threads of one pipe, which end with it, or with the last graph that can still go backward through it.

    Args:
        size: the number of stages.
        silence: seconds a step may take before the log says what it is doing (default: a minute).
    """

    def __init__(self, size: int, *, silence: float = SILENCE) -> None:
        self._size = size
        self._silence = silence
        self._process = -1
        self._inboxes: list[_Inbox] = []
        self._threads: list[threading.Thread] = []
        self._relief: threading.Thread | None = None

    def dismiss(self) -> None:
        """Ends the threads; the next step starts new ones."""
        _dismiss(self._inboxes, self._threads)
        self._process = -1

    def check_caller(self) -> None:
        """Refuses a stage that calls its own pipe: it would wait for itself.

        Raises:
            RuntimeError: the calling thread is one of the crew's, or does its work.
        """
        if threading.current_thread() in (*self._threads, self._relief):
            raise RuntimeError("a stage of a Pipe called that same Pipe; call the module inside it instead")

    @contextmanager
    def relieved(self) -> Iterator[None]:
        """Says that the calling thread does the crew's work by itself meanwhile."""
        self._relief = threading.current_thread()
        try:
            yield
        finally:
            self._relief = None

    def run(self, jobs: Sequence[Job], stop: Callable[[], None], doing: Callable[[], str]) -> None:
        """Does one job on each thread and returns when all are done.

        Args:
            jobs: what each thread does.
            stop: makes the others give up waiting; called once for every job that fails.
            doing: tells what the jobs are at, for the log.

        Raises:
            BaseException: whatever was raised first in a job.
        """
        self._start()
        step = _Step(len(jobs))
        for inbox, job in zip(self._inboxes, jobs, strict=True):
            inbox.put((job, stop, step))
        try:
            self._wait(step, doing)
        except BaseException:
            # Ctrl-C in the caller, most likely. The threads still use the layers: leave only when they have let go.
            stop()
            self._wait(step, doing)
            raise
        if step.failure is not None:
            failure, step.failure = step.failure, None
            raise failure

    def _wait(self, step: _Step, doing: Callable[[], str]) -> None:
        began = time.monotonic()
        silence = self._silence
        while not step.wait(min(_PATIENCE, silence)):
            if time.monotonic() - began >= silence:
                _log.warning("a step has been running for %.0f s; %s", time.monotonic() - began, doing())
                silence *= 2
            dead = [thread.name for thread in self._threads if not thread.is_alive()]
            if dead:
                raise WorkerLost(f"{', '.join(dead)} ended in the middle of a step; make a new Pipe")

    def _start(self) -> None:
        if self._process == os.getpid():
            return
        self._process = os.getpid()  # after a fork the threads are the parent's: start new ones
        self._inboxes = [queue.SimpleQueue() for _ in range(self._size)]
        self._threads = [
            threading.Thread(target=_serve, args=(inbox,), name=f"thinpipe-stage-{j}", daemon=True)
            for j, inbox in enumerate(self._inboxes)
        ]
        for thread in self._threads:
            thread.start()
        weakref.finalize(self, _dismiss, self._inboxes, self._threads)


def _dismiss(inboxes: list[_Inbox], threads: list[threading.Thread]) -> None:
    for inbox in inboxes:
        inbox.put(None)
    for thread in threads:
        # A collector may run this in a stage's own thread, which cannot wait for itself.
        if thread is not threading.current_thread():
            thread.join(_PATIENCE)
