"""``Client``: the side that has the data, the labels, the first and the last layers.

::

    client = Client(first, last, connect="gpu.example.org:5555", offer="middle", loss_fn=F.cross_entropy,
                    optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1), chunks=4, codec="wave:4")
    for x, y in batches:
        loss = client.step(x, y)
"""

from __future__ import annotations

import copy
import logging
import math
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from thinpipe import __version__, arguments
from thinpipe.checkpoint.disk import LONGEST, FolderLock, until_written
from thinpipe.errors import (
    ArgumentError,
    BusyError,
    CheckpointError,
    DamagedError,
    DisagreementError,
    DiskError,
    PacketError,
    PeerError,
    PeerLost,
    RefusedError,
    RolledBackError,
    StallError,
    ThinpipeError,
)
from thinpipe.links import Closed, Throttle
from thinpipe.links.net import Channel, ClientKeys, dial
from thinpipe.links.net.addresses import Address
from thinpipe.remote.cost import HalfCost, StepCost
from thinpipe.remote.half import MOST, Half, Task, rows_of
from thinpipe.remote.offer import MakeOptimizer
from thinpipe.remote.past import Memory, Past
from thinpipe.remote.protocol import (
    BEGIN,
    CLOSING,
    COMMIT,
    FAILED,
    HELLO,
    LEAVE,
    LEFT,
    MOST_SAID,
    NOTICE,
    PROTOCOL,
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
from thinpipe.remote.saved import Store
from thinpipe.remote.spans import write_trace
from thinpipe.remote.terms import CUTS, Terms, blank_of, shapes_of, verify_same
from thinpipe.remote.troubles import Troubles, refusal
from thinpipe.runtime.crossing import CodecChoice, by_cut
from thinpipe.runtime.parcel import Edge
from thinpipe.runtime.rank_step import LastStage, moved, targets_of
from thinpipe.stages.microbatch import Batch
from thinpipe.trace import NO_TRACE, AnyTracer, Tracer

_log = logging.getLogger("thinpipe")
GIVE_UP = 600.0
"""Seconds to try to reach a server that was lost."""
_PATIENCE = 600.0
"""Seconds that a server which is alive may take over a step or an answer."""
_CLOCKS = 5.0
"""Seconds to wait for the first comparison of clocks, where a trace needs one."""
_GOODBYE = 60.0
"""Seconds that it may take to save."""
_ANEW = "bring its files back from a copy, or begin anew, with another folder"

R = TypeVar("R")


@dataclass(frozen=True)
class _Batch:
    """One call of ``step``, kept until both halves have saved it twice over: it may have to be computed again.

    Where the caller can give inputs and targets again, ``rows`` is None once they are trained on.
    """

    rows: tuple[Any, Any] | None
    lr: float | None
    clip: float | None


class Client(nn.Module):
    """Trains the two ends of a model, whose middle a server has.

    It is a module with ``first`` and ``last``, so ``parameters`` and ``state_dict`` are those of this side. Inputs and
    targets never leave it. A lost connection is mended without the caller's doing: ``step`` returns when its batch is
    part of the past on both sides, once.

    Args:
        first: the layers that get the inputs.
        last: the layers that get what the server returns.
        connect: the server's address, ``host:port``.
        offer: what the server calls the middle.
        loss_fn: called with the output and the targets of a micro-batch; the mean over its rows.
        optimizer: makes the optimizer of this side's parameters. It is part of ``step``, because both sides' weights
            must move together or not at all.
        chunks: the number of micro-batches. Default: 1.
        codec: how activations are packed: one codec, or one by the number of the cut, 0 to the server and 1 from it.
            Default: not at all.
        grad_codec: how gradients are packed. Default: not at all.
        schedule: ``stream`` keeps both directions of a thin link busy; see ``Pipeline`` for the others. Default:
            ``stream``.
        ahead: see ``Pipeline``. Default: 1.
        keys: this client's, and the server's public one. Default: none, for a server on this machine.
        folder: where this side is saved. One that has a training in it is gone on with, and a line in the log says so.
            Default: in memory only, which survives the server's restart but not this process.
        every: after how many steps both sides save. The batches since the last save but one are kept in memory.
            Default: 50.
        seed: of the server's first weights, and of what is drawn in steps on both sides. Default: 0.
        device: where this side's layers are. Default: the CPU.
        deferred_batch_norm: whether BatchNorm moves its running statistics once a batch, on both sides.
            Default: ``False``.
        bandwidth: bits a second each way of an emulated thin link. Default: as fast as it is.
        example: inputs of one row, by which shapes are compared before anything is trained. Default: they are not.
        batches: gives the inputs and targets of a step again, by the number of steps before it; nothing of them is kept
            then. Default: they are kept in memory until both sides have saved twice.
        give_up: seconds to try to reach a server again. Default: 600.
        silence: seconds without any sign of life after which a connection counts as lost. Default: 15.
        trace: a file for a trace of both sides on one clock, written by ``close``. Default: none.
        check: called before a step is kept, with its loss and, where it is known, the norm of all gradients; what it
            raises ends the step on both sides. The norm is known with ``clip``, and of steps that are saved.
            Default: nothing.

    Raises:
        PeerLost, AuthError: there is no such server, or it does not know this client's key.
        DisagreementError: the two sides disagree; the message has both values.
        RefusedError: the server is full, or does not offer that.
        FolderError: the folder cannot be written, or another process trains in it.
        CheckpointError: the folder has a training of another model, or all that it has is damaged.
    """

    loss_fn: Callable[..., Tensor]

    def __init__(
        self,
        first: nn.Module,
        last: nn.Module,
        *,
        connect: str,
        offer: str,
        loss_fn: Callable[..., Tensor],
        optimizer: MakeOptimizer,
        chunks: int = 1,
        codec: CodecChoice = None,
        grad_codec: CodecChoice = None,
        schedule: str = "stream",
        ahead: int = 1,
        keys: ClientKeys | None = None,
        folder: str | Path | None = None,
        every: int = 50,
        seed: int = 0,
        device: torch.device | str = "cpu",
        deferred_batch_norm: bool = False,
        bandwidth: float | None = None,
        example: Any = None,
        batches: Callable[[int], tuple[Any, Any]] | None = None,
        give_up: float = GIVE_UP,
        silence: float = 15.0,
        trace: str | Path | None = None,
        check: Callable[[Tensor, float | None], None] | None = None,
    ) -> None:
        super().__init__()
        for name, part in (("first", first), ("last", last)):
            if not isinstance(part, nn.Module):
                raise ArgumentError(f"{name} must be an nn.Module, got {part!r:.100}; thinpipe.split cuts a model")
        arguments.text("offer", offer)
        arguments.text("schedule", schedule)
        arguments.function("loss_fn", loss_fn, takes="torch.nn.functional.cross_entropy")
        arguments.function("optimizer", optimizer, takes="lambda weights: torch.optim.SGD(weights, lr=0.1)")
        if keys is not None and not isinstance(keys, ClientKeys):
            raise ArgumentError(f"keys must be ClientKeys(own pair, the server's public key), got {keys!r:.100}")
        if bandwidth is not None:
            arguments.number("bandwidth (bits a second)", bandwidth, above=0)
        arguments.seconds("give_up", give_up, endless=True)
        arguments.seconds("silence", silence)
        if folder is not None:
            arguments.folder("folder", folder)
        if trace is not None:
            arguments.file("trace", trace)
        if batches is not None:
            arguments.function("batches", batches, takes="lambda step: (inputs, targets)")
        # A wrong name is reported now. In a training it is waited for: a laptop that wakes up cannot resolve any yet.
        Address.parse(connect).resolved()
        there, back = (by_cut(choice, CUTS) for choice in (codec, grad_codec))
        self.terms = Terms(
            chunks, schedule, ahead, tuple(zip(there, back, strict=True)), seed, deferred_batch_norm, every
        )
        place = arguments.device("device", device)
        tracer: AnyTracer = NO_TRACE if trace is None else Tracer(0)
        self._half = Half({0: first, 2: last}, self.terms, optimizer=optimizer, device=place, most=MOST, tracer=tracer)
        self.first, self.last = first, last
        # Not as a submodule: weights of a loss are no part of the model.
        self.__dict__["loss_fn"] = loss_fn
        self.address, self.offer, self.keys = connect, offer, keys
        self.cost: StepCost | None = None
        self._bandwidth, self._silence, self._give_up, self._trace = bandwidth, silence, give_up, trace
        self._inputs = None if example is None else self._shapes(example)
        self._folder = None if folder is None else Path(folder)
        self._shelf = Memory() if self._folder is None else Store(self._folder)
        self._past = Past(self._shelf, "this client")
        self._batches: dict[int, _Batch] = {}
        self._again = batches
        self._check = check
        self._commit: Commit | None = None
        self._loss: Tensor | None = None
        self._channel: Channel | None = None
        self._number = 0
        self._welcomed = self._is_closed = self._gave_up = False
        self._began = time.perf_counter()
        self.session = secrets.token_hex(16)
        self._lock = None if self._folder is None else FolderLock(self._folder, "choose another folder")
        try:
            self._resume()
            if self._welcomed:
                self._persist(lambda: None)  # the server may be about to be started again, too
            else:
                self._connect()
        except BaseException:
            self._release()
            raise
        if self.committed:
            _log.warning(
                "%s has a training of %s: going on from its step %d; to begin anew, choose another folder",
                self._folder,
                self.offer,
                self.committed,
            )

    # -- what a caller uses --------------------------------------------------------------------------------------------

    @property
    def committed(self) -> int:
        """How many steps are part of the past on this side; a training loop goes on with the next."""
        return self._half.committed

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of this side."""
        return self._half.optimizer

    def step(self, inputs: Any, targets: Any, *, lr: float | None = None, clip: float | None = None) -> Tensor:
        """Trains both sides on one batch, optimizers included.

        Args:
            inputs: a tensor, or a nesting of tuples, lists and dictionaries, cut along the first dimension. It must
                not be changed in place until both sides have saved, ``every`` steps later, unless the client can ask
                for it again (``batches``).
            targets: cut as the inputs are.
            lr: the learning rate of both sides from now on (default: what their optimizers have).
            clip: the largest norm that the gradients of both sides together may have (default: any).

        Returns:
            The loss, weighted by rows.

        Raises:
            PeerLost, StallError: the server was not to be reached for ``give_up`` seconds.
            PeerError: the server's part has failed; the message says how.
            RolledBackError: a saved step is damaged, and both sides went back to one from before this process began;
                go on with the batches from ``committed`` on.
        """
        goal = self.committed + 1
        self._batches[goal] = _Batch((inputs, targets), lr, clip)
        self._persist(lambda: self._catch_up(goal))
        assert self._loss is not None
        return self._loss

    def evaluate(self, inputs: Any, targets: Any = None) -> Any:
        """Runs a batch forward, in evaluation mode, through the same cuts and codecs.

        Args:
            inputs: as in ``step``.
            targets: as in ``step``.

        Returns:
            With targets the loss, without them the output.
        """
        goal = self.committed

        def evaluate() -> Any:
            self._catch_up(goal)
            last, _ = self._attempt(inputs, targets, train=False)
            return last.output() if targets is None else last.loss

        return self._persist(evaluate)

    def save(self) -> None:
        """Has both sides save now."""
        goal = self.committed

        def save() -> None:
            self._catch_up(goal)
            self._told(SAVE, goal)
            self._save()
            while goal not in self._their_steps:
                self._hear()

        self._persist(save)

    def roll_back(self) -> None:
        """Goes back to the newest step that both sides have saved; the server follows when it is greeted next."""
        self._lose()
        self._half.go_back(self._past.load(self._their_steps))
        self._commit = None

    def close(self) -> None:
        """Has both sides save, ends the session at the server, and writes the trace. Safe to call twice.

        A connection that is lost at that moment is mended once more, unless nobody was there when it was last tried.
        """
        if self._is_closed:
            return
        try:
            if self._gave_up:
                self._past.save(self._half)
            else:
                self._keep()
                self._persist(self._leave)
        except (ThinpipeError, OSError) as error:
            _log.warning("the session could not be ended at the server, or not be saved: %s", error)
        finally:
            self._is_closed = True
            channel, self._channel = self._channel, None
            self._half.detach()
            if channel is not None:
                channel.close()
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _leave(self) -> None:
        channel = self._channel
        assert channel is not None
        until = time.monotonic() + _CLOCKS
        while self._trace is not None and not channel.clock_samples() and time.monotonic() < until:
            time.sleep(0.01)
        channel.tell(SAVED, self.committed)
        channel.tell(LEAVE, self.committed)
        spans = self._goodbye(channel)
        if self._trace is not None:
            write_trace(Path(self._trace), self._half.tracer, spans, channel.clock_samples())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    # -- a step --------------------------------------------------------------------------------------------------------

    def _catch_up(self, goal: int) -> None:
        while self.committed < goal:
            batch = self._batches.get(self.committed + 1)
            if batch is None:
                self._batches = {}
                raise RolledBackError(
                    f"both sides went back to step {self.committed}, and this process has not had the batches after "
                    "it; start it again, or go on with the batches from client.committed on"
                )
            self._train(batch)

    def _train(self, batch: _Batch) -> None:
        began = time.perf_counter()
        rows = batch.rows
        if rows is None:
            assert self._again is not None
            rows = self._again(self.committed)
        saved = (self.committed + 1) % self.terms.every == 0
        asked = batch.clip is not None or (saved and self._check is not None)
        last, cost = self._attempt(*rows, train=True, norm=asked)
        norm = math.sqrt(self._half.squares() + self._squares) if asked else None
        if norm is not None:
            self._verify(last, norm)
        scale = 1.0 if norm is None or batch.clip is None else min(1.0, batch.clip / (norm + 1e-6))
        # From here on the step is part of the past: the server will hear of it now, or when it is greeted again.
        self._half.commit(lr=batch.lr, scale=scale)
        self._commit, self._loss = Commit(self.committed, batch.lr, scale), last.loss
        self.cost = StepCost.of(self.committed, last.rows.total, time.perf_counter() - began, *cost)
        self._told(COMMIT, asdict(self._commit))
        if self._is_due():
            self._save()
        self._forget_batches()

    def _is_due(self) -> bool:
        return self.committed % self.terms.every == 0 and self.committed not in self._past.steps()

    def _save(self) -> None:
        """Saves this side, and tells the server."""
        self._keep()
        self._told(SAVED, self.committed)

    def _keep(self) -> None:
        """Saves this side, however long it takes until there is room on its disk."""
        try:
            until_written(f"step {self.committed}", lambda: self._past.save(self._half), self._say, who="this client")
        except BaseException:
            self._gave_up = True  # whoever does not want to wait now does not want to when the client is closed
            raise

    def _say(self, text: str) -> None:
        """Says something to the people on both sides."""
        _log.warning("%s", text)
        if self._channel is not None:
            with suppress(ThinpipeError, Closed):
                self._channel.tell(NOTICE, text[:MOST_SAID])

    def _attempt(
        self, inputs: Any, targets: Any, *, train: bool, norm: bool = False
    ) -> tuple[LastStage, tuple[HalfCost, HalfCost]]:
        batch = Batch.of(inputs, self.terms.chunks)
        rows = [count for count in batch.rows if count]
        self._number += 1
        task = Task(self._number, self.committed + 1, rows, train)
        parts = None if targets is None else [moved(each, self._half.device) for each in targets_of(targets, rows)]
        last = LastStage(Edge(2, 3), self._half.device, rows_of(task), parts, self.loss_fn, lambda loss: loss)
        self._told(BEGIN, asdict(Begin(task.number, task.step, rows, train, norm)))
        own = self._half.attempt(task, batch=batch, last=last)
        try:
            if train:
                self._verify(last, None)
            answer = self._ready(task)
        except BaseException:
            self._half.take_back()
            raise
        return last, (own, HalfCost.from_json(answer["cost"]))

    def _verify(self, last: LastStage, norm: float | None) -> None:
        if self._check is not None:
            assert last.loss is not None
            self._check(last.loss, norm)

    def _ready(self, task: Task) -> dict[str, Any]:
        while True:
            word, value = self._hear()
            if word == READY and isinstance(value, dict) and value.get("number") == task.number:
                squares = value.get("squares", 0.0)
                # None stands for what JSON cannot say.
                self._squares = squares if isinstance(squares, float) and squares >= 0 else math.inf
                return value

    def _hear(self, timeout: float = _PATIENCE) -> tuple[str, Any]:
        """Takes the next word; notes what both sides have saved on the way."""
        assert self._channel is not None
        word, value = self._channel.hear(timeout)
        if word == SAVED:
            self._their_steps.add(step_of(value))
            self._past.theirs(step_of(value))
        elif word == NOTICE:
            _log.warning("%s: %s", self._channel.peer, notice_of(value))
        elif word == REFUSED:
            raise refusal(self._channel.peer, value)
        elif word == FAILED:
            raise PeerError(f"{self._channel.peer} could not go on: {value!s:.2000}")
        elif word == CLOSING:
            raise PeerLost(f"{self._channel.peer} is being closed")
        return word, value

    def _told(self, word: str, value: Any) -> None:
        assert self._channel is not None
        self._channel.tell(word, value)

    def _forget_batches(self) -> None:
        kept = self._past.oldest
        self._batches = {step: batch for step, batch in self._batches.items() if step > kept}
        if self._again is not None and self.committed in self._batches:
            self._batches[self.committed] = replace(self._batches[self.committed], rows=None)

    # -- a connection --------------------------------------------------------------------------------------------------

    def _persist(self, action: Callable[[], R]) -> R:
        """Does something that needs the server, again and again until it is done, or there is no hope for it."""
        if self._is_closed:
            raise ThinpipeError("the client is closed; make another one")
        troubles, waits = Troubles(self._give_up), ""
        while True:
            try:
                if self._channel is None:
                    self._connect()
                    if (line := troubles.connected()) is not None:
                        _log.warning("step %d: %s", self.committed + 1, line)
                done = action()
                if waits:
                    _log.warning("there is room again; going on after step %d", self.committed)
                self._gave_up = False
                return done
            except (PeerLost, StallError, PacketError, Closed, BusyError, DamagedError, DiskError) as error:
                welcomed = self._half.wires is not None
                error = self._hear_the_rest() or error
                self._lose()
                try:
                    pause = troubles.pause(self.committed, error, welcomed=welcomed)
                    if not isinstance(error, DiskError):
                        if (line := troubles.lost(error)) is not None:
                            _log.warning("step %d: %s", self.committed + 1, line)
                    elif str(error) != waits:
                        waits = str(error)
                        _log.warning("%s; waiting, trying again every %g s", error, LONGEST)
                    time.sleep(pause)
                except BaseException:
                    self._gave_up = True
                    raise
            except BaseException:
                # The server may be in the middle of a step that nobody will finish: it hears of it at once.
                self._lose()
                raise

    def _hear_the_rest(self) -> DiskError | None:
        """Takes what the server has said before the connection broke: it may have said that it cannot save.

        Raises:
            PeerError: its part of the model has failed.
        """
        try:
            while self._channel is not None:
                self._hear(0.0)
        except DiskError as error:
            return error
        except (PeerLost, StallError, PacketError, Closed):
            return None
        except (PeerError, RefusedError):
            self._lose()
            raise
        return None

    def _lose(self) -> None:
        channel, self._channel = self._channel, None
        self._half.detach()
        self._half.take_back()
        if channel is not None:
            channel.break_off(PeerLost("this client lost its connection"))

    def _resume(self) -> None:
        if not isinstance(self._shelf, Store):
            return
        note = self._shelf.read_note()
        if note is None:
            return
        ours = {"offer": self.offer, "seed": self.terms.seed}
        verify_same(ours, note, us="here", them=f"in {self._folder}, which has a training already,")
        self.session = str(note["session"])
        self._welcomed = bool(note["known"])
        if not self._past.steps() and not self._welcomed:
            return
        try:
            self._half.go_back(self._past.load())
        except CheckpointError as error:
            raise CheckpointError(f"the training in {self._folder} cannot be gone on with: {error}; {_ANEW}") from error

    def _write_note(self, *, known: bool) -> None:
        if isinstance(self._shelf, Store):
            note = {"session": self.session, "offer": self.offer, "seed": self.terms.seed, "known": known}
            self._shelf.write_note(note)

    def _connect(self) -> None:
        throttle = None if self._bandwidth is None else Throttle(self._bandwidth)
        self._channel = dial(self.address, keys=self.keys, silence=self._silence, throttle=throttle)
        try:
            self._greet(self._channel)
        except BaseException:
            self._lose()
            raise

    def _greet(self, channel: Channel) -> None:
        steps = self._past.steps()
        hello = Hello(
            protocol=PROTOCOL,
            version=__version__,
            offer=self.offer,
            session=self.session,
            known=self._welcomed,
            terms=self.terms,
            inputs=self._inputs,
            at=self.committed,
            steps=steps,
            commit=self._commit if self._commit is not None and self._commit.step == self.committed else None,
            bandwidth=self._bandwidth,
            trace=self._trace is not None,
        )
        channel.tell(HELLO, hello.to_json())
        word, value = channel.hear(_PATIENCE)
        if word == REFUSED:
            raise refusal(channel.peer, value)
        if word != WELCOME:
            raise PacketError(f"{channel.peer} answered {word!r:.50} to a hello")
        welcome = Welcome.from_json(value)
        verify_same(
            {"version of thinpipe": __version__},
            {"version of thinpipe": welcome.version},
            us="here",
            them="at the server",
        )
        self._verify_outputs(welcome)
        if not self._past.steps():
            # Not before the welcome: a refusal leaves nothing behind. The note first: what lies beside it is its own.
            self._write_note(known=False)
            self._past.save(self._half)
            channel.tell(SAVED, self.committed)
        if welcome.step != self.committed:
            if welcome.step not in steps:
                raise RefusedError(f"{channel.peer} wants to go on from step {welcome.step}; this side has {steps}")
            before = self.committed
            # Should it be damaged, the server is asked again, for another that both have.
            self._half.go_back(self._past.load({welcome.step}))
            _log.warning("going back from step %d to step %d, which both sides have", before, welcome.step)
            self._commit = None
        self._their_steps = set(welcome.steps)
        self._past.meet(welcome.steps)
        self._number = 0
        self._half.attach(channel)
        if not self._welcomed:
            self._welcomed = True
            self._write_note(known=True)
        if said := self._past.account(self.committed):
            self._say(said)
        if self._is_due():
            self._save()  # the connection broke between the last commit and that

    def _shapes(self, example: Any) -> list[Any]:
        """Finds out what the first part makes of one row."""
        modes = {module: module.training for module in self.modules()}
        self.eval()
        try:
            with torch.no_grad():
                return shapes_of(self.first(moved(example, self._half.device)))
        finally:
            for module, training in modes.items():
                module.training = training

    def _verify_outputs(self, welcome: Welcome) -> None:
        """Checks that the last part can take what the server will send, without computing anything."""
        blank = None if welcome.outputs is None else blank_of(welcome.outputs)
        if blank is None or self._welcomed:
            return
        try:
            with torch.no_grad():
                copy.deepcopy(self.last).to("meta").eval()(blank)
        except NotImplementedError:
            return
        except Exception as error:
            raise DisagreementError(
                f"the server's middle returns {welcome.outputs}, which the last part here does not take: {error}"
            ) from error

    def _goodbye(self, channel: Channel) -> list[str]:
        """Waits until the server has saved as well; it sends what it recorded on the way."""
        pieces: list[str] = []
        while True:
            word, value = channel.hear(_GOODBYE)
            if word == SPANS and isinstance(value, str):
                pieces.append(value)
            elif word == SAVED:
                self._past.theirs(step_of(value))
            elif word == FAILED:
                raise PeerError(f"{channel.peer} could not save: {value!s:.2000}")
            elif word == REFUSED:
                raise refusal(channel.peer, value)
            elif word == LEFT:
                return pieces
