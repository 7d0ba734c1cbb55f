"""One client's training on a server: its half of the model, what it has saved, and the connection of the moment."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe import __version__
from thinpipe.errors import (
    AuthError,
    BusyError,
    DamagedError,
    DiskError,
    PacketError,
    PeerLost,
    RefusedError,
    StallError,
    ThinpipeError,
)
from thinpipe.finite import plain
from thinpipe.links import Closed, Throttle
from thinpipe.links.net import Channel
from thinpipe.links.net.seldom import Seldom
from thinpipe.remote.cost import HalfCost
from thinpipe.remote.half import Half, Task
from thinpipe.remote.metrics import Counters, SessionStatus, State
from thinpipe.remote.offer import Offer
from thinpipe.remote.past import Past, Shelf
from thinpipe.remote.protocol import (
    BEGIN,
    CLOSING,
    COMMIT,
    FAILED,
    LEAVE,
    LEFT,
    MOST_SAID,
    NOTICE,
    READY,
    REFUSED,
    SAVE,
    SAVED,
    SPANS,
    WELCOME,
    Begin,
    Commit,
    Hello,
    Welcome,
    notice_of,
    step_of,
)
from thinpipe.remote.saved import Snapshot
from thinpipe.remote.spans import pieces
from thinpipe.remote.terms import Terms, shapes_of
from thinpipe.remote.troubles import kind_of, reason_for_others
from thinpipe.remote.turns import Turns
from thinpipe.runtime.randomness import default_generators
from thinpipe.trace import NO_TRACE, AnyTracer, Tracer

_log = logging.getLogger("thinpipe")
_LOOK = 0.5
"""Seconds between two looks at whether the server is being closed."""
_MOST_TOLD = 1 << 18
"""Bytes of words that wait to leave."""


class Session:
    """One training; a thread of the server serves one connection of it at a time.

    Args:
        name: the client's secret name for it.
        client: who that is, for people.
        offer_name: what it trains.
        offer: how that is made.
        terms: how it is trained.
        shelf: where it is saved.
        is_new: whether it begins, with nothing saved.
        device: where it computes.
        turns: the queue at the device.
        most: the longest message to be accepted, in bytes.
        counters: told what happens.

    Attributes:
        guests: connections that it serves, or that wait for it; guarded by the server's lock.
        has_left: whether its client has said that it is done, so that somebody else may have its place.
        heard: when the client last said something.

    Raises:
        RefusedError: all that was saved of it is damaged.
        CheckpointError: what was saved of it does not fit, or it cannot be saved.
    """

    def __init__(
        self,
        name: str,
        *,
        client: str,
        offer_name: str,
        offer: Offer,
        terms: Terms,
        shelf: Shelf,
        is_new: bool,
        device: torch.device,
        turns: Turns,
        most: int,
        counters: Counters,
    ) -> None:
        self.name, self.client, self.offer = name, client, offer_name
        # Nobody else draws meanwhile: a session in the middle of a step may have been lent the default generators.
        with default_generators.get(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(terms.seed)
            middle = offer.make()
        self.inputs: list[Any] | None = None
        self.outputs: list[Any] | None = None
        if offer.example is not None:
            self.inputs, self.outputs = _shapes(middle, offer.example)
        self.half = Half({1: middle}, terms, optimizer=offer.optimizer, device=device, most=most, turns=turns)
        self.past = Past(shelf, "the server")
        self._unsaved = ""
        self._seldom = Seldom()
        if is_new:
            self._save()
        else:
            self.half.go_back(self._loaded())
        self.lock = threading.Lock()
        self.guests, self.has_left = 0, False
        self.heard = time.monotonic()
        self._counters = counters
        self._channel: Channel | None = None
        self._newest: Channel | None = None
        self._received_before = 0
        self._stopping = False
        self._training = False
        self._rows = self._sent = self._received = 0
        self._computed = self._waited = 0.0
        self._attempted = 0

    @property
    def is_away(self) -> bool:
        """Whether nobody is connected, nor about to be."""
        return self.guests == 0

    def status(self) -> SessionStatus:
        """Says how it is."""
        state: State = "away" if self.is_away else "training" if self._training else "connected"
        return SessionStatus(
            name=self.client,
            session=self.name[:8],
            offer=self.offer,
            state=state,
            step=self.half.committed,
            rows=self._rows,
            sent=self._sent,
            received=self._received,
            computed=self._computed,
            waited=self._waited,
            seconds_since_heard=time.monotonic() - self.heard,
        )

    # -- a connection --------------------------------------------------------------------------------------------------

    def take_over(self, channel: Channel, patience: float) -> None:
        """Ends whatever connection the session has, and holds its lock for a newer one.

        Raises:
            BusyError: it takes too long, or one that is newer still has come.
        """
        self._newest = channel
        until = time.monotonic() + patience
        self._make_way()
        # Again and again: the one before may only be on its way in.
        while not self.lock.acquire(timeout=_LOOK):
            if self._newest is not channel:
                raise BusyError("the same session was connected again")
            if time.monotonic() > until:
                raise BusyError("the session is still busy with its last connection; try again")
            self._make_way()
        if self._newest is not channel:
            self.lock.release()
            raise BusyError("the same session was connected again")

    def _make_way(self) -> None:
        if (channel := self._channel) is not None:
            channel.break_off(PeerLost("the same session was connected again"))

    def serve(self, channel: Channel, *, idle: float) -> bool:
        """Serves a connection that was welcomed; tells whether the session is over. The caller holds the lock.

        Args:
            channel: the connection.
            idle: seconds without a word of the client's after which it is sent away.
        """
        self._channel, self.heard, self.has_left = channel, time.monotonic(), False
        try:
            return self._attend(channel, idle)
        except (PeerLost, StallError, PacketError, AuthError, Closed) as error:
            self._counters.count("broken")
            if isinstance(error, PacketError):
                channel.break_off(error)  # so that it is told what it did wrong
            if not self._stopping:
                _log.warning("%s, session %s, step %d: %s", self.client, self.name[:8], self.half.committed, error)
            return False
        except DiskError as error:
            _tell(channel, REFUSED, {"kind": kind_of(error), "reason": error.reason})
            return False
        except Exception as error:
            _log.exception("%s, session %s failed", self.client, self.name[:8])
            _tell(channel, FAILED, reason_for_others(error)[:2000])
            return False
        finally:
            self._count(channel)
            self._channel = None
            self._training = False
            self.half.detach()
            channel.close()

    def stop(self) -> None:
        """Has the session end as soon as no step is under way."""
        self._stopping = True

    def break_off(self) -> None:
        """Ends the connection in the middle of whatever it is at."""
        if self._channel is not None:
            self._channel.break_off(PeerLost("the server is being closed"))

    def end_if_stuck(self, limit: float) -> None:
        """Ends a connection whose client is in a step, lives, and has sent nothing of the step for too long.

        Args:
            limit: how many seconds that is.
        """
        wires, channel = self.half.wires, self._channel
        if wires is None or channel is None or (wait := wires.where.wait()) is None:
            return
        if (received := wires.received) != self._received_before:
            self._received_before, self.heard = received, time.monotonic()
        elif time.monotonic() - max(wait[1], self.heard) > limit:
            channel.break_off(StallError(f"{channel.peer} sent nothing of its step for {limit:g} s"))

    def put_away(self) -> None:
        """Saves what is committed; the caller holds the lock, and lets go of the session afterwards."""
        self.half.take_back()
        self.past.save(self.half)

    def welcome(self, channel: Channel, hello: Hello) -> None:
        """Goes to where the client is, or to the newest step that both have. The caller holds the lock.

        Raises:
            RefusedError: there is no such step.
            DiskError: the step where both are is due to be saved, and cannot be.
            CheckpointError: it cannot be read.
        """
        half = self.half
        if hello.bandwidth is not None:
            channel.slow_down(Throttle(hello.bandwidth))
        if not hello.trace:
            half.tracer = NO_TRACE
        elif half.tracer is NO_TRACE:
            half.tracer = Tracer(1)
        half.terms = hello.terms
        # Decided by the client, and not heard of here: the connection broke in between.
        if half.prepared and hello.commit is not None and hello.commit.step == half.committed + 1:
            self._commit(hello.commit)
        half.take_back()
        if hello.at != half.committed:
            self._go_back(hello)
        self.past.meet(hello.steps)
        if self._is_due():
            self._save()
        half.attach(channel)
        answer = Welcome(__version__, self.inputs, self.outputs, half.committed, self.past.steps())
        channel.tell(WELCOME, answer.to_json())
        if said := self.past.account(half.committed):
            self._warn(said)
            channel.tell(NOTICE, said[:MOST_SAID])

    def _go_back(self, hello: Hello) -> None:
        """Goes to the newest step that both have, and that is not damaged here."""
        before, theirs = self.half.committed, {*hello.steps, *([] if hello.at is None else [hello.at])}
        if before in theirs and before >= max(theirs & {before, *self.past.steps()}):
            return
        both = theirs & set(self.past.steps())
        if not both:
            raise RefusedError(
                f"no step in common: the client has {hello.steps}, the server {self.past.steps()}. Bring back the "
                "files of one side from a copy, or begin anew, with another folder"
            )
        self.half.go_back(self._loaded(both))
        self._warn(f"goes back from step {before} to step {self.half.committed}, where its client is or can go")

    def _loaded(self, among: Collection[int] | None = None) -> Snapshot:
        try:
            return self.past.load(among)
        except DamagedError as error:
            self._warn(str(error))
            raise RefusedError(
                f"{error.reason}, and nothing else is left that both sides have. Bring back the server's files from a "
                "copy, or begin anew, with another folder"
            ) from error

    def _attend(self, channel: Channel, idle: float) -> bool:
        while True:
            # Between two steps, however busy the client is; but not while the fate of a step is open.
            if self._stopping and not self.half.prepared:
                channel.tell(CLOSING)
                return False
            try:
                word, value = channel.hear(_LOOK)
            except StallError:
                if channel.failure is not None:
                    raise
                if time.monotonic() - self.heard > idle:
                    _log.info("%s, session %s was idle for %g s", self.client, self.name[:8], idle)
                    channel.tell(CLOSING)
                    return True
                continue
            self.heard = time.monotonic()
            if word == LEAVE:
                return self._leave(channel, step_of(value))
            self._do(channel, word, value)

    def _do(self, channel: Channel, word: str, value: Any) -> None:
        if word == BEGIN:
            self._train(channel, Begin.from_json(value, chunks=self.half.terms.chunks))
        elif word == COMMIT:
            commit = Commit.from_json(value)
            if not self.half.prepared or commit.step != self.half.committed + 1:
                raise PacketError(f"step {commit.step} cannot be committed after step {self.half.committed}")
            self._commit(commit)
            if self._is_due():
                self._save(channel)
        elif word == SAVED:
            # Only what can be of use is remembered: nobody shall fill the memory with numbers.
            if (step := step_of(value)) in {self.half.committed, *self.past.steps()}:
                self.past.theirs(step)
        elif word == SAVE:
            if self.half.prepared:
                raise PacketError(f"nothing can be saved while step {self.half.committed + 1} is neither kept nor not")
            self._save(channel)
        elif word == NOTICE:
            self._seldom.warn(f"{self.client}, session {self.name[:8]}: {notice_of(value)}")
        else:
            raise PacketError(f"{word!r:.50} is no word of a client")

    def _train(self, channel: Channel, begin: Begin) -> None:
        half = self.half
        if begin.step != half.committed + 1 or half.prepared:
            raise PacketError(f"step {begin.step} cannot begin after step {half.committed}")
        if begin.train:
            if begin.step <= self._attempted:
                self._counters.count("replays")
            self._attempted = max(self._attempted, begin.step)
        self._training = True
        cost = half.attempt(Task(begin.number, begin.step, begin.rows, begin.train))
        self._training = False
        self._tally(cost, sum(begin.rows) if begin.train else 0)
        answer: dict[str, Any] = {"number": begin.number, "cost": cost.to_json()}
        if begin.norm:
            answer["squares"] = plain(half.squares())
        channel.tell(READY, answer)

    def _commit(self, commit: Commit) -> None:
        self.half.commit(lr=commit.lr, scale=commit.scale)
        self._counters.count("steps")

    def _is_due(self) -> bool:
        return self.half.committed % self.half.terms.every == 0 and self.half.committed not in self.past.steps()

    def _save(self, channel: Channel | None = None) -> None:
        """Saves what is committed, and tells the client.

        Raises:
            DiskError: the disk does not take it now, which is in the log, once for each reason.
        """
        step = self.half.committed
        try:
            self.past.save(self.half)
        except DiskError as error:
            if error.reason != self._unsaved:
                self._unsaved = error.reason
                self._warn(f"{error}; its client is told, and tries again")
            raise DiskError(str(error), f"step {step}: {error.reason}") from error
        if self._unsaved:
            self._unsaved = ""
            self._warn(f"step {step} is saved, and training goes on")
        if channel is not None:
            channel.tell(SAVED, step)

    def _warn(self, text: str) -> None:
        _log.warning("%s, session %s: %s", self.client, self.name[:8], text)

    def _leave(self, channel: Channel, step: int) -> bool:
        self.half.take_back()  # of a step that the client did not keep
        if step == self.half.committed:
            self._save(channel)
        if self.half.tracer is not NO_TRACE:
            _tell_spans(channel, self.half.tracer)
        # Before the client knows: whoever comes when it has left finds its place free.
        self.has_left = True
        channel.tell(LEFT)
        return True

    def _tally(self, cost: HalfCost, rows: int) -> None:
        self._rows += rows
        self._computed += cost.computed
        self._waited += cost.stalled
        self._sent += cost.sent
        self._received += cost.received

    def _count(self, channel: Channel) -> None:
        rest = channel.sent.lap(), channel.received.lap()
        self._sent += rest[0].sent
        self._received += rest[1].received


def _shapes(middle: nn.Module, example: Any) -> tuple[list[Any], list[Any] | None]:
    """Finds out what one row is before and after the middle; None where that is more than a tensor."""
    was = middle.training
    middle.eval()
    with torch.no_grad():
        output = middle(example)
    middle.train(was)
    return shapes_of(example), shapes_of(output) if isinstance(output, Tensor) else None


def _tell_spans(channel: Channel, tracer: AnyTracer) -> None:
    """Tells what was recorded, no faster than it leaves: more words than a channel holds would break it."""
    before, told = channel.sent.snapshot().sent, 0
    for piece in pieces(tracer):
        while told > channel.sent.snapshot().sent - before + _MOST_TOLD and channel.failure is None:
            time.sleep(0.001)
        channel.tell(SPANS, piece)
        told += len(json.dumps(piece))


def _tell(channel: Channel, word: str, value: Any) -> None:
    """Says why it ends, if somebody is still there to hear it."""
    try:
        channel.tell(word, value)
    except (ThinpipeError, Closed):
        return
