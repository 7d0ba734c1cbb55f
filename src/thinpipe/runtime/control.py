"""What ranks tell each other beside the data: that they live, what they are at, when a step begins, what went wrong.

::

    rank 0  --- alive, at F0.3 ------>  rank 1      every second or so, from a thread of its own: a rank that computes
            <-- alive, at F1.1 -------              for minutes is not taken for dead, and one that was stopped is
            --- begin step 7: 4, 4, 3 ->
            <-- failed: rank 1 at B1.2 ...          everybody repeats it to everybody, and every wait ends with it
            --- failed: rank 1 at B1.2 ...

Four things end a pipeline. Who is to blame is found before anybody is told, because a rank that ends for the sake of
another one looks as dead as the first:

=====================  =================================================================================================
``PeerError``          A rank raised an error. It says so itself, before its connections break.
``PeerLost``           A connection broke and nobody, for half a second, gave a reason: the process is gone. Or a rank
                       closed its pipeline while others were in the middle of a step.
``StallError``         A rank was silent for ``timeout``: it is stopped, or cut off. Or it is alive, and for
                       ``patience`` has done nothing while others wait: of ranks that wait for each other, the one at
                       the end of the chain.
``DisagreementError``  A rank waits for the others between two steps, and another is in a step that it has left out.
=====================  =================================================================================================

Where a connection breaks, gloo wakes neither who has sent half of a message nor who has received half of one. A rank
hangs up, therefore, only when its own last word has left and the other's has come, or nobody takes or sends one for a
second::

    rank 0  --- bye ------->  rank 1          "noted" and "failed" are last words: nothing follows them
            <-- noted ------
            hangs up
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist

from thinpipe.errors import PeerLost, StallError, ThinpipeError
from thinpipe.links import Closed, Meter, ReceiveLane, SendLane
from thinpipe.runtime.whereabouts import Whereabouts
from thinpipe.runtime.words import FAILURES, MOST, Cause, cause_in, read, written

_log = logging.getLogger("thinpipe")

_GRACE = 0.5
"""Seconds that a lost connection waits for somebody's explanation before it is reported as the cause."""

_FAREWELL = 1.0
"""Seconds that a rank which ends waits for the others to have heard so, and for its own last words to leave."""


@dataclass
class _Peer:
    """What is known of another rank.

    Args:
        heard: when it last said anything.
        moved: when it was first heard to be where it is.
        moves: how often it has moved on.
        at: what it is at.
        waits_for: the rank that it waits for.
        steps: how many steps it had begun when it closed its pipeline.
        settled: whether it needs to be told nothing any more.
    """

    heard: float
    moved: float
    moves: int = 0
    at: str = "its start"
    waits_for: int | None = None
    steps: int | None = None
    settled: bool = False


class Control:
    """The ranks of one pipeline, as one of them sees the others.

    Args:
        group: a gloo group that nobody else uses.
        where: what this rank is at.
        timeout: seconds a rank may be silent before it is given up.
        patience: seconds that a rank may be waited for which is alive and does not move on.
    """

    def __init__(self, group: dist.ProcessGroup, where: Whereabouts, *, timeout: float, patience: float) -> None:
        self.failure: BaseException | None = None
        self.closed = False
        self._where = where
        self._timeout, self._patience = timeout, patience
        self._me = group.rank()
        self._callbacks: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        # What was told, and how many steps had been begun by who told it.
        self._told: dict[tuple[str, int, int], tuple[Any, int]] = {}
        self._step = -1
        now = time.monotonic()
        self._stood_still = (-math.inf, -math.inf)
        ranks = [rank for rank in range(group.size()) if rank != self._me]
        self._peers = {rank: _Peer(now, now) for rank in ranks}
        self._out = {rank: SendLane(group, rank, 0, deadline=timeout, meter=Meter()) for rank in ranks}
        self._in = {rank: ReceiveLane(group, rank, 0, most=MOST, deadline=timeout, meter=Meter()) for rank in ranks}
        self._mouths: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {
            rank: queue.SimpleQueue() for rank in ranks
        }
        self._speakers = [self._start(self._speak, rank) for rank in ranks]
        self._threads = [*self._speakers, *(self._start(self._listen, rank) for rank in ranks)]
        self._threads += [self._start(self._watch)] if ranks else []

    def _start(self, target: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                target(*arguments)
            except Closed:
                pass
            except Exception as error:
                # A watcher that is gone would let the others wait for ever.
                self._end(error, self._own(error))

        thread = threading.Thread(target=run, daemon=True, name=f"thinpipe {target.__name__[1:]}")
        thread.start()
        return thread

    # -- what callers use ----------------------------------------------------------------------------------------------

    def when_failed(self, callback: Callable[[], None]) -> None:
        """Has a function called, in whatever thread, as soon as anything has failed anywhere."""
        with self._changed:
            self._callbacks.append(callback)
            late = self.failure is not None
        if late:
            callback()

    def begin(self, step: int) -> None:
        """Notes that a step begins, which needs all ranks."""
        with self._changed:
            self._step = step
        self._miss_the_gone()
        self._miss_the_skipped()

    def tell(self, kind: str, step: int, value: Any, *, to: int | None = None) -> None:
        """Tells all other ranks, or one of them, something about a step."""
        message = self._message(kind, value, step=step)
        if to is None:
            self._say(message)
        else:
            self._mouths[to].put(message)

    def wait_for(self, kind: str, step: int, rank: int, *, what: str = "") -> Any:
        """Waits for what another rank tells about a step.

        Args:
            kind: what it is.
            step: the number of the step, or of anything else that is told in order.
            rank: who tells it.
            what: a name for people. Default: the kind and the step.

        Raises:
            Closed: something failed meanwhile, or the other rank has closed its pipeline.
        """
        key, what = (kind, step, rank), what or f"the {kind} of step {step}"
        told, peer = self._told, self._peers[rank]
        with self._where.waiting(what, rank):
            with self._changed:
                self._changed.wait_for(lambda: key in told or self.failure or self.closed or peer.steps is not None)
                if key in told:
                    return told.pop(key)[0]
            if peer.steps is not None:
                self._blame("lost", rank, f"closed its pipeline after {peer.steps} steps, and did not tell {what}")
        raise Closed

    def fail(self, error: BaseException) -> None:
        """Ends everything, here and on all other ranks, because of an error of this rank's own.

        Returns when the others have heard so, or could not be told.
        """
        self._end(error, self._own(error))
        self._wait_for_peers()

    def broken(self, error: BaseException, rank: int | None) -> None:
        """Takes an error of what moves the data between this rank and another.

        Returns without a failure if the connection broke because the other rank had no more use for it.

        Args:
            error: what was raised.
            rank: the other rank; None if only the error knows.
        """
        if not isinstance(error, PeerLost | StallError):
            self._end(error, self._own(error))
            return
        with self._changed:
            peer = None if rank is None else self._peers[rank]
            # The connections here tell more: why a rank ended, or that it said goodbye.
            known = self._changed.wait_for(
                lambda: self.failure or self.closed or (peer and peer.steps is not None), 4 * _GRACE
            )
        if not known:
            kind = "lost" if isinstance(error, PeerLost) else "stall"
            if rank is None:
                cause = Cause(kind, -1, str(error))
                self._end(self._error(cause), cause)
            else:
                self._blame(kind, rank, f"does not get, or send, the data of its cut: {error}")

    def close(self) -> None:
        """Says goodbye: the others will not take this rank's end for a failure, unless they are in a later step."""
        with self._changed:
            if self.closed:
                return
            self.closed = True
            if self.failure is None:
                self._say(self._message("bye", self._step + 1))
            self._changed.notify_all()
        self._wait_for_peers()
        for mouth in self._mouths.values():
            mouth.put(None)
        _join(self._speakers, time.monotonic() + _FAREWELL)
        for lane in (*self._out.values(), *self._in.values()):
            lane.abort()

    def join(self, until: float) -> None:
        """Waits for all threads, once closed and hung up; the interpreter must not end while one is inside torch."""
        _join(self._threads, until)
        self._callbacks.clear()  # whoever is called has this control as well: the two would live until collected

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _own(self, error: BaseException) -> Cause:
        said = str(error)[:2000]
        text = f"{type(error).__name__}: {said}" if said else type(error).__name__
        return Cause("error", self._me, f"rank {self._me} failed at {self._where}: {text}")

    def _blame(self, kind: str, rank: int, text: str) -> None:
        cause = Cause(kind, rank, f"rank {rank} {text}; it was last heard of at {self._peers[rank].at}")
        self._end(self._error(cause), cause)

    def _error(self, cause: Cause, told_by: int | None = None) -> ThinpipeError:
        """Makes of a cause the error that is raised on this rank."""
        text = cause.text
        if cause.rank == self._me and cause.kind != "apart":
            text = f"the other ranks gave this one up: {text}"
        if told_by not in (None, cause.rank):
            text += f" (says rank {told_by})"
        since, until = self._stood_still
        if time.monotonic() - until < self._timeout:
            text += f"; this rank itself had stood still for {until - since:.1f} s"
        return FAILURES[cause.kind](f"{text}; this rank, {self._me}, was at {self._where}")

    def _end(self, error: BaseException, cause: Cause) -> None:
        """Notes the first failure, wakes everybody here and tells the cause to all others."""
        with self._changed:
            if self.failure is not None or self.closed:
                return
            self.failure = error
            if cause.kind in ("lost", "stall") and cause.rank in self._peers:
                self._peers[cause.rank].settled = True  # nobody waits for its answer
            callbacks = list(self._callbacks)
            self._changed.notify_all()
        _log.error("the pipeline ends: %s", error if isinstance(error, ThinpipeError) else cause.text)
        # Repeated by everybody: a rank may be cut off from the one that found out, and not from others.
        self._say(self._message("failed", asdict(cause)), last=True)
        for callback in callbacks:
            callback()

    def _wait_for_peers(self) -> None:
        """Waits until all other ranks have heard this one's last word, or have said their own."""
        with self._changed:
            while not self._changed.wait_for(lambda: all(peer.settled for peer in self._peers.values()), _FAREWELL):
                if not self._is_heard():
                    return

    def _is_heard(self) -> bool:
        """Tells whether somebody still takes what was told before: a long trace, over a thin link."""
        late = [(rank, peer) for rank, peer in self._peers.items() if not peer.settled]
        now = time.monotonic()
        return any(not self._mouths[rank].empty() and now - peer.heard < self._timeout for rank, peer in late)

    def _settle(self, rank: int) -> None:
        with self._changed:
            self._peers[rank].settled = True
            self._changed.notify_all()

    def _miss_the_gone(self) -> None:
        """Ends a step that somebody will not take part in."""
        for rank, peer in self._peers.items():
            if peer.steps is not None and peer.steps <= self._step:
                text = f"closed its pipeline after {peer.steps} steps, and is missed in step {self._step}"
                self._blame("lost", rank, text)

    def _miss_the_skipped(self) -> None:
        """Ends a step that a rank has left out: it waits for all ranks elsewhere, after fewer steps than this one."""
        with self._changed:
            behind = {rank: begun for (_, _, rank), (_, begun) in self._told.items() if begun <= self._step}
        for rank, begun in behind.items():
            text = (
                f"waits for the others after {begun} steps, while rank {self._me} is in step {self._step}, which all "
                "ranks must take. Call step() and evaluate() equally often on all of them: a batch that one rank "
                "leaves out, all must leave out"
            )
            self._blame("apart", rank, text)

    # -- threads -------------------------------------------------------------------------------------------------------

    def _message(self, kind: str, value: Any = None, *, step: int = 0) -> dict[str, Any]:
        return {"kind": kind, "step": step, "begun": self._step + 1, "value": value}

    def _say(self, message: dict[str, Any], *, last: bool = False) -> None:
        for mouth in self._mouths.values():
            mouth.put(message)
            if last:
                mouth.put(None)

    def _speak(self, rank: int) -> None:
        interval = min(1.0, self._timeout / 6)
        mouth, lane = self._mouths[rank], self._out[rank]
        try:
            while True:
                try:
                    message = mouth.get(timeout=interval)
                except queue.Empty:
                    message = self._message("alive")
                if message is None:
                    lane.flush()
                    return
                lane.send([written({**message, **self._report()})])
        except PeerLost:
            return  # what the rank said before its connection broke is still to be read, by the thread that listens
        except StallError as error:
            self._blame("stall", rank, f"hears nothing ({error})")

    def _report(self) -> dict[str, Any]:
        wait = self._where.wait()
        return {"moves": self._where.moves, "at": str(self._where), "waits_for": None if wait is None else wait[0]}

    def _listen(self, rank: int) -> None:
        try:
            while True:
                message = read(self._in[rank].receive())
                self._note(self._peers[rank], message)
                self._take(rank, message)
        except (PeerLost, StallError):
            self._settle(rank)
            self._disconnected(rank)

    def _disconnected(self, rank: int) -> None:
        """Gives up a rank whose connection broke, unless it said goodbye, or somebody knows better why."""
        with self._changed:
            peer = self._peers[rank]
            known = self._changed.wait_for(lambda: self.failure or self.closed or peer.steps is not None, _GRACE)
        if not known:
            self._blame("lost", rank, "is gone: its connection broke")

    def _take(self, rank: int, message: dict[str, Any]) -> None:
        kind, value, peer = message["kind"], message["value"], self._peers[rank]
        if kind == "failed":
            cause = cause_in(value)
            self._settle(rank)
            self._end(self._error(cause, rank), cause)
        elif kind == "noted":
            self._settle(rank)
        elif kind == "bye":
            with self._changed:
                self._mouths[rank].put(self._message("noted"))
                self._mouths[rank].put(None)
                peer.steps = int(value)
                # Two that say goodbye at once answer each other; a rank that went first is gone after the answer.
                peer.settled |= self.failure is not None or not self.closed
                self._changed.notify_all()
            self._miss_the_gone()
        elif kind != "alive":
            with self._changed:
                self._told[kind, message["step"], rank] = value, message["begun"]
                self._changed.notify_all()
            self._miss_the_skipped()

    def _note(self, peer: _Peer, message: dict[str, Any]) -> None:
        with self._changed:
            peer.heard = time.monotonic()
            if message["moves"] != peer.moves:
                peer.moves, peer.moved = message["moves"], peer.heard
            peer.at, peer.waits_for = message["at"], message["waits_for"]

    def _watch(self) -> None:
        """Gives up ranks that have been silent, or waited for, for too long."""
        interval = min(0.5, self._timeout / 10)
        last = time.monotonic()
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self.failure or self.closed, interval):
                    return
            now = time.monotonic()
            if now - last > self._timeout / 2:
                # This rank itself stood still: what the others said meanwhile is still to be read.
                self._stood_still = (last, now)
                for peer in self._peers.values():
                    peer.heard = now
            last = now
            self._miss_the_silent(now)
            self._miss_the_idle(now)

    def _miss_the_silent(self, now: float) -> None:
        """Gives up a rank that says nothing: stopped, or cut off."""
        silences = {rank: now - peer.heard for rank, peer in self._peers.items() if peer.steps is None}
        if not silences or max(silences.values()) <= self._timeout:
            return
        longest = max(silences, key=lambda rank: silences[rank])
        text = f"has been silent for {self._timeout:g} s"
        # A rank that is cut off from all others last heard of each at another moment.
        too = [rank for rank, silence in silences.items() if rank != longest and silence > self._timeout / 2]
        if too:
            ranks = " and ".join(f"rank {rank}" for rank in too)
            text += f" ({ranks} almost as long: rank {self._me} may be the one that is cut off)"
        for rank in too:
            self._settle(rank)
        self._blame("stall", longest, text)

    def _miss_the_idle(self, now: float) -> None:
        """Gives up a rank that is alive, is waited for, and for a long time has not moved on."""
        wait = self._where.wait()
        if wait is None or wait[0] == self._me or now - wait[1] < self._patience:
            return
        rank = self._last_of_chain(wait[0])
        if now - self._peers[rank].moved > self._patience:
            chain = "" if rank == wait[0] else f" while rank {wait[0]} waits for others"
            self._blame("stall", rank, f"is alive, but has not moved on for {self._patience:g} s{chain}")

    def _last_of_chain(self, rank: int) -> int:
        """Finds who keeps everybody waiting: the rank that the rank that ... waits for, and that waits for nobody."""
        seen, last = {self._me}, rank
        while last not in seen:
            seen.add(last)
            following = self._peers[last].waits_for
            if following is None:
                return last
            last = following
        return rank


def _join(threads: Iterable[threading.Thread], until: float) -> None:
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))
