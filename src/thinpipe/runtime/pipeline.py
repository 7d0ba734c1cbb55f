"""``Pipeline``: a model cut into stages on several processes, trained by one ``step`` on each of them.

::

    # torchrun --nproc-per-node 2 train.py
    pipeline = Pipeline(model, balance=[3, 2], chunks=8, loss_fn=F.cross_entropy, codec="block:4", grad_codec="block:4")
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
    for x, y in batches:
        loss = pipeline.step(x, y)
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thinpipe import arguments
from thinpipe.errors import ArgumentError, BatchError, PeerLost, StallError, ThinpipeError
from thinpipe.links import Closed, Throttle
from thinpipe.runtime.agreement import agree, explained, fingerprint, meet, part
from thinpipe.runtime.ambient import Ambient
from thinpipe.runtime.assembly import assemble
from thinpipe.runtime.batch_digest import BatchDigest
from thinpipe.runtime.connections import connect
from thinpipe.runtime.crossing import CodecChoice, crossings, load_state, specs_of, state_of, verify_choice
from thinpipe.runtime.mesh import Mesh
from thinpipe.runtime.parcel import Edge
from thinpipe.runtime.pipe import RECOMPUTE_MODES
from thinpipe.runtime.randomness import Randomness, RankGenerators
from thinpipe.runtime.rank_step import LastStage, RankStep, moved, targets_of, with_recomputations
from thinpipe.runtime.statistics import Statistics, statistics_of
from thinpipe.runtime.whereabouts import Doing, Whereabouts
from thinpipe.runtime.worker import Station, Worker
from thinpipe.schedule import Action, ActionList, Kind, plan, validate
from thinpipe.stages.batchnorm import defer_batch_norm, deferred_layers, one_batch
from thinpipe.stages.microbatch import Batch
from thinpipe.stages.split import indexed


class Pipeline(nn.Module):
    """The part of a pipeline that one rank has. Every rank makes one, with the same arguments, and calls the same.

    It is a module with this rank's layers under the names they have in the whole model, so that ``parameters``,
    ``state_dict`` and optimizers are of this rank's part alone.

    Args:
        stages: the whole model, of which the rank keeps its part: a list of modules, one a stage, a ``Split``, or an
            ``nn.Sequential`` with a ``balance``. A stage gets what the one before it returns; if its forward takes
            several arguments, a tuple is spread over them, and a dictionary by names.
        chunks: the number of micro-batches.
        loss_fn: called with the output and the targets of a micro-batch; the mean over its rows. Only the rank of the
            last stage calls it.
        balance: the number of layers of each stage of an ``nn.Sequential`` (default: ``stages`` is a list).
        schedule: ``gpipe``, ``1f1b``, ``interleaved`` or ``zb``. Default: ``1f1b``.
        ahead: how many more micro-batches a stage of ``1f1b`` or ``zb`` may hold for each stage after it, to compute
            while messages travel; each costs the memory of its activations. Default: 1.
        codec: how activations are packed at the cuts; see ``Pipe``. Default: not at all.
        grad_codec: how gradients are packed. Default: not at all.
        map: the rank of each stage; ``(0, 1, 0)`` is a U. With replicas, the place of the rank in its replica. Default:
            dealt out in turn.
        replicas: how many pipelines train the model together, each on its own rows of a batch. Of ``n`` ranks the first
            ``n / replicas`` are replica 0, and so on. Gradients are those of one device with all rows; weights and
            buffers begin as those of replica 0, whose buffers (BatchNorm's statistics) win after every step, too.
            Default: 1.
        group: the process group. Default: all processes.
        device: where this rank's stages are. Default: the current GPU if the group can use it, else the CPU.
        checkpoint: the stages whose activations are recomputed: ``never`` none, ``always`` all, or their numbers.
            Default: ``never``.
        recompute: what is repeated of them, ``all`` or what is ``cheap``; see ``Pipe``. Default: ``all``.
        deferred_batch_norm: whether BatchNorm moves its running statistics once a batch. Default: ``False``.
        seed: decides, with the step, the stage and the micro-batch, what stages draw at random, as dropout does;
            PyTorch's own generators stay as they are. Replicas draw different numbers. Default: rank 0's
            ``torch.initial_seed()``.
        scaler: a gradient scaler that all ranks agree on, such as ``ShardedGradScaler``. Default: none.
        timeout: seconds that a rank may be silent before all others end with a ``StallError``: it was stopped, or cut
            off, or one call kept the interpreter's lock for all that time. A long computation is no silence.
            Default: 15.
        patience: seconds that a rank which is alive may stay at one and the same action while others wait for it.
            Default: 600.
        start_timeout: seconds to wait for all ranks to make theirs; more if some load a large model first. Default: 60.
        throttle: makes an emulated link from this rank to another, as ``lambda: Throttle(50e6)`` for 50 Mbit/s.
            Default: as fast as it is.
        trace: a file for a trace of all ranks, written by ``close`` and read by ``thinpipe trace show``. Default: none.

    Raises:
        SplitError, BalanceError: the model cannot be cut so.
        DisagreementError: ranks were started with different values.
        PeerError: another rank could not make its part.
        StallError: not all ranks came.
    """

    loss_fn: Callable[..., Tensor]

    def __init__(
        self,
        stages: nn.Sequential | Sequence[nn.Module],
        *,
        chunks: int,
        loss_fn: Callable[..., Tensor],
        balance: Sequence[int] | None = None,
        schedule: str = "1f1b",
        ahead: int = 1,
        codec: CodecChoice = None,
        grad_codec: CodecChoice = None,
        map: Sequence[int] | None = None,
        replicas: int = 1,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        checkpoint: str | Sequence[int] = "never",
        recompute: str = "all",
        deferred_batch_norm: bool = False,
        seed: int | None = None,
        scaler: Any = None,
        timeout: float = 15.0,
        patience: float = 600.0,
        start_timeout: float = 60.0,
        throttle: Callable[[], Throttle] | None = None,
        trace: str | Path | None = None,
    ) -> None:
        super().__init__()
        arguments.seconds("start_timeout", start_timeout)
        group = group if group is not None else dist.group.WORLD
        if group is None:
            raise ThinpipeError("there is no process group; call torch.distributed.init_process_group, under torchrun")
        self.rank, self.world = group.rank(), group.size()
        self.schedule = schedule
        # Not as a submodule: weights of a loss are no part of the model, and only the last rank would move them.
        self.__dict__["loss_fn"] = loss_fn
        self.scaler = scaler
        talk = meet(group, "talk", timeout=start_timeout)
        # First of all: who disagrees about it could not make sense of the rest, and would say something else.
        said = replicas if isinstance(replicas, int) else repr(replicas)
        self._compare(talk, {"number of replicas": said}, timeout=start_timeout)
        with explained(talk, timeout=start_timeout):
            self._mesh = Mesh(self.rank, self.world, arguments.whole("replicas", replicas))
            self.chunks, self.ahead = arguments.whole("chunks", chunks), arguments.whole("ahead", ahead, least=0)
            arguments.choice("recompute", recompute, RECOMPUTE_MODES)
            arguments.seconds("timeout", timeout)
            arguments.seconds("patience", patience)
            if loss_fn is not None:  # of ranks without the last stage
                arguments.function("loss_fn", loss_fn, takes="torch.nn.functional.cross_entropy")
            if throttle is not None:
                arguments.function("throttle", throttle, takes="lambda: Throttle(50e6)")
            if trace is not None:
                arguments.file("trace", trace)
            verify_choice(codec)
            verify_choice(grad_codec)
            self.device = _device(device)
            self.assembly = assemble(stages, balance, map, rank=self.rank, ranks=self._mesh.team, device=self.device)
            n = len(self.assembly.stages)
            self._recomputed = _recomputed(checkpoint, n)
            self._plans: dict[int, list[ActionList]] = {}
            self._plan(self.chunks)  # whatever is wrong with the schedule is said now
            if arguments.flag("deferred_batch_norm", deferred_batch_norm):
                defer_batch_norm(self.assembly.own)
            self._take_over(self.assembly.own)
            self._crossings = crossings(self.assembly.stages, codec, grad_codec)
        self._stations = {
            j: Station(stage, self._crossings, thrifty=recompute == "cheap")
            for j, stage in enumerate(self.assembly.stages)
            if self.assembly.workers[j] == self.rank
        }
        self._where = Whereabouts(self.assembly.workers)
        self._steps = self._norms = 0
        self.statistics: Statistics | None = None
        terms = self._terms(fingerprint(list(stages)), seed, traced=trace is not None)
        theirs = self._compare(talk, terms, timeout=start_timeout, beside={"initial seed": torch.initial_seed()})
        chosen = theirs[0]["initial seed"] if seed is None else seed
        self._generators = RankGenerators(chosen, replica=self._mesh.replica, device=self.device)
        self._connections = connect(
            group,
            talk,
            self._mesh,
            self.assembly,
            self._crossings,
            device=self.device,
            where=self._where,
            start_timeout=start_timeout,
            timeout=timeout,
            patience=patience,
            throttle=throttle,
            trace=trace,
        )
        self._begin()

    @property
    def replicas(self) -> int:
        """The number of pipelines that train the model together."""
        return self._mesh.replicas

    @property
    def replica(self) -> int:
        """The one that this rank belongs to; its inputs are that replica's rows of a batch."""
        return self._mesh.replica

    @property
    def worker(self) -> int:
        """The place of this rank in its replica, as in ``map``."""
        return self._mesh.worker

    @property
    def layout(self) -> dict[str, Any]:
        """How the model is spread over ranks, in plain values; what ranks remember of codecs is of use in the same."""
        return {
            "replicas": self.replicas,
            "map": list(self._map),
            "layers": self.assembly.layers,
            "codecs": [[e.source, e.target, *specs] for e, specs in specs_of(self._crossings).items()],
        }

    def _take_over(self, tree: nn.Module) -> None:
        """Makes everything in a tree of modules this one's own, under the same names."""
        self._modules.update(tree._modules)
        self._parameters.update(tree._parameters)
        self._buffers.update(tree._buffers)
        self._non_persistent_buffers_set |= tree._non_persistent_buffers_set

    @staticmethod
    def _compare(
        talk: dist.ProcessGroup, values: Mapping[str, Any], *, timeout: float, beside: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        try:
            return agree(talk, values, timeout=timeout, beside=beside)
        except BaseException:
            part(talk)
            raise

    @property
    def _map(self) -> tuple[int, ...]:
        """The place of each stage's rank in its replica."""
        return tuple(rank - self._mesh.team[0] for rank in self.assembly.workers)

    def _terms(self, model: str, seed: int | None, *, traced: bool) -> dict[str, Any]:
        """Lists what must be the same on all ranks, by names for people."""
        from thinpipe import __version__

        return {
            "version of thinpipe": __version__,
            "number of chunks": self.chunks,
            "schedule": self.schedule,
            "micro-batches ahead": self.ahead,
            "map of stages to ranks": self.layout["map"],
            "layers of the stages": self.layout["layers"],
            "codecs": self.layout["codecs"],
            "recomputed stages": sorted(self._recomputed),
            "model (a digest of names, shapes and types)": model,
            "seed": seed,
            "gradient scaler": self.scaler is not None,
            "trace": traced,
        }

    def _begin(self) -> None:
        """Sees to the end of what was opened, and makes shared weights equal."""
        joined = self._connections
        self._control, self._talk, self._post = joined.control, joined.talk, joined.post
        self._ties, self._siblings = joined.ties, joined.siblings
        self._shut = weakref.finalize(self, joined.shut)
        # Not by the finalizer itself: only what is registered after the lanes is called before they break off.
        self._shut.atexit = False
        atexit.register(self._shut)
        try:
            with self._guarded():
                self._ties.make_equal()
                self._ties.flush()
                self._siblings.make_equal()
        except BaseException:
            self.close()  # nobody else will: whoever asked for it gets an error, whose frames may keep it for long
            raise

    # -- training ------------------------------------------------------------------------------------------------------

    def step(self, inputs: Any = None, targets: Any = None, *, rows: Any = None) -> Tensor:
        """Trains on one batch: gradients are added to those of the parameters, as ``backward`` does it.

        Args:
            inputs: the batch, needed by the rank of the first stage and ignored by the others: a tensor, or a nesting
                of tuples, lists and dictionaries, cut along the first dimension. With replicas, this replica's rows;
                they may have different numbers of rows, some none at all.
            targets: needed by the rank of the last stage; without any, ``loss_fn`` gets the output alone. If the rank
                of the first stage has targets of the same shape, on the CPU, they must be the same.
            rows: names the rows of the batch, by indices, a number or a text, so that ranks which have different ones
                notice. Given on the ranks of the first and the last stage, or on none. Default: targets are compared.

        Returns:
            The loss, weighted by rows: that of the whole batch, over all replicas, on every rank.

        Raises:
            DisagreementError: ranks have different rows, or one has left out a step.
            PeerError, PeerLost, StallError: something failed on another rank; the pipeline is of no use any more.
        """
        with self._guarded():
            began = time.perf_counter()
            step = self._prepare(inputs, targets, rows, train=True)
            self._siblings.set_gradients_aside()
            self._ties.set_gradients_aside()
            step.lend_gradients()
            with one_batch(deferred_layers(self)):
                step.run(self._actions(train=True), train=True)
            # Gradients are added up while the last ones are still on their way to other stages.
            self._post.dispatch()
            step.leave_gradients()
            self._where.at(f"the gradients of shared weights in step {self._steps - 1}")
            self._ties.sum_gradients()
            self._sum_over_replicas()
            self._post.flush()
            self._ties.flush()
            loss = self._share_loss(step)
            assert loss is not None
            self._finish(step, began)
            return loss

    def evaluate(self, inputs: Any = None, targets: Any = None, *, rows: Any = None) -> Any:
        """Runs a batch forward, in evaluation mode, through the same cuts and codecs.

        Args:
            inputs: as in ``step``.
            targets: as in ``step``.
            rows: as in ``step``.

        Returns:
            With targets on the rank of the last stage, the loss on every rank, that of all replicas. Without, the
            output on that rank, of its own replica's rows, and None on all others, or if there are none: it is not
            sent back over the links.
        """
        modes = {module: module.training for module in self.modules()}
        self.eval()
        try:
            with self._guarded(), torch.no_grad():
                began = time.perf_counter()
                step = self._prepare(inputs, targets, rows, train=False)
                step.run(self._actions(train=False), train=False)
                self._post.flush()
                loss = self._share_loss(step)
                self._finish(step, began)
                return step.last.output() if loss is None and step.last is not None else loss
        finally:
            for module, training in modes.items():
                module.training = training

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scales the gradients of all ranks so that their common norm is at most ``max_norm``; returns the norm.

        Replicas have the same gradients, and each scales its own.
        """
        with self._guarded():
            number, self._norms = self._norms, self._norms + 1
            self._where.at(f"the norm of all gradients, after step {self._steps - 1}")
            grads = [p.grad for p in self.parameters() if p.grad is not None and self._ties.counts(p)]
            own = float(torch.nn.utils.get_total_norm(grads, norm_type)) if grads else 0.0
            others = [rank for rank in self._mesh.team if rank != self.rank]
            for rank in others:
                self._control.tell(f"norm of rank {self.rank}", number, own, to=rank)
            norms = [own, *(float(self._control.wait_for(f"norm of rank {r}", number, r)) for r in others)]
            # Sorted, so that all ranks add in the same order and scale by the same number.
            total: Tensor = torch.linalg.vector_norm(torch.tensor(sorted(norms), dtype=torch.float64), norm_type)
            torch.nn.utils.clip_grads_with_norm_(list(self.parameters()), max_norm, total.to(self.device))
            return total

    def gather(self, what: str, value: Any) -> list[Any]:
        """Collects a plain value of every rank, by rank; all ranks call it.

        Args:
            what: what it is about, for people; the same on all ranks.
            value: anything that JSON can say in a few kilobytes.

        Raises:
            DisagreementError: another rank came with something else.
            PeerError, PeerLost, StallError: a rank failed, or does not come.
        """
        with self._guarded():
            return self._talk.gather(what, value)

    # -- a step --------------------------------------------------------------------------------------------------------

    def _prepare(self, inputs: Any, targets: Any, named: Any, *, train: bool) -> RankStep:
        number, self._steps = self._steps, self._steps + 1
        source, sink = self.assembly.workers[0], self.assembly.workers[-1]
        self._where.at(f"the start of step {number}")
        self._control.begin(number)
        batch = self._batch(inputs) if self.rank == source else None
        counts = None if batch is None else [count for count in batch.rows if count]
        # The first rank speaks, and the last one compares: others have nothing to do with targets.
        ends = {source} if targets is None else {source, sink}
        digest = BatchDigest.of(named, targets, alone=source == sink or self.rank not in ends)
        rows = self._rows = self._talk.rows(number, counts, digest, train=train)
        n = len(self.assembly.stages)
        # The loss draws as one more stage would.
        draws = self._generators.begin([*self._stations, n], train=train)
        last = None
        if self.rank == sink:
            parts = None if targets is None else [moved(each, self.device) for each in targets_of(targets, rows.own)]
            last = LastStage(Edge(n - 1, n), self.device, rows, parts, self.loss_fn, self._scaled, draws[n])
        if train and self.scaler is not None:
            self.scaler.scale(torch.zeros((), device=self.device))  # every rank's scaler begins at its first use
        self._post.begin(number)
        ambient = Ambient.capture([self.device])
        workers = self._workers(len(rows.own), ambient, last, draws, train=train)
        step = RankStep(workers, self._post, ambient, last, self._at)
        if batch is not None and rows.own:
            step.feed(batch)
        if batch is not None:
            # Not sooner: the threads that say it would keep this one from its work, and nobody waits for it yet.
            self._talk.announce(number, rows.own, digest, train=train)
        return step

    def _batch(self, inputs: Any) -> Batch:
        if inputs is None:
            raise BatchError(f"rank {self.rank} has the first stage; pass it inputs, got None")
        batch = Batch.of(inputs, self.chunks)
        if not sum(batch.rows) and self.replicas == 1:
            raise BatchError("the batch is empty; a step needs at least one row")
        return batch

    def _workers(
        self, m: int, ambient: Ambient, last: LastStage | None, draws: Mapping[int, Randomness], *, train: bool
    ) -> dict[int, Worker]:
        n = len(self.assembly.stages)
        return {
            j: Worker(
                station,
                ambient=ambient,
                randomness=draws[j],
                recomputed=frozenset(range(m)) if train and j in self._recomputed else frozenset(),
                wants_graph=train,
                threads=torch.get_num_threads(),
                ending=last.compare if last is not None and j == n - 1 else None,
            )
            for j, station in self._stations.items()
        }

    def _plan(self, m: int) -> list[ActionList]:
        if m not in self._plans:
            cut = self.assembly
            job, lists = plan(self.schedule, len(cut.stages), m, self._map, cut.skips, ahead=self.ahead)
            validate(job, lists)
            self._plans[m] = lists
        return self._plans[m]

    def _actions(self, *, train: bool) -> ActionList:
        if not self._rows.own:
            return []
        own = self._plan(len(self._rows.own))[self.worker]
        if not train:
            return [action for action in own if action.kind is Kind.FORWARD]
        return with_recomputations(own, self._recomputed)

    def _scaled(self, loss: Tensor) -> Tensor:
        scaled: Tensor = loss if self.scaler is None else self.scaler.scale(loss)
        return scaled

    def _share_loss(self, step: RankStep) -> Tensor | None:
        return self._talk.loss(self._steps - 1, None if step.last is None else step.last.loss, self._rows)

    def _sum_over_replicas(self) -> None:
        if self.replicas == 1:
            return
        self._where.at(f"adding up the gradients of all replicas in step {self._steps - 1}")
        began = time.perf_counter()
        self._siblings.sum_gradients()
        details = {"step": self._steps - 1, "bytes": self._siblings.bytes}
        self._connections.trace.tracer.add("wire", "sum over replicas", began, time.perf_counter(), **details)

    def _finish(self, step: RankStep, began: float) -> None:
        seconds = time.perf_counter() - began
        self.statistics = statistics_of(
            seconds, step.computed, self._post.stalled, self._connections.ways, self._ties.meter, self._siblings
        )
        self._where.at(f"the end of step {self._steps - 1}")

    def _at(self, action: Action) -> None:
        self._where.at(Doing(action, self._steps - 1))

    # -- failures ------------------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Says what this rank is at, for a reader on another one."""
        return str(self._where)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Tells all ranks what goes wrong here, and raises here what went wrong elsewhere."""
        control = self._control
        if control.failure is None and control.closed:
            raise ThinpipeError("the pipeline is closed; make another one")
        try:
            if control.failure is not None:
                raise Closed
            yield
        except (Closed, PeerLost, StallError) as error:
            if not isinstance(error, Closed):
                control.broken(error, None)
            if control.failure is None:
                raise ThinpipeError("the pipeline was closed in the middle of a step") from None
            # Without the frames, and tensors, of the time before.
            raise control.failure.with_traceback(None) from None
        except BaseException as error:
            control.fail(error)
            raise

    def close(self) -> None:
        """Ends the pipeline: writes the trace, tells the other ranks, and stops all threads. Safe to call twice."""
        if self._control.failure is None and not self._control.closed:
            self._connections.trace.write(self._control)
        self._shut()
        atexit.unregister(self._shut)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None and self._control.failure is None:
            self._control.fail(error)
        self.close()

    # -- what is remembered from one step to the next ------------------------------------------------------------------

    def rng_state_dict(self) -> dict[str, int]:
        """Returns the seed and the number of steps, which decide what stages draw; the same on all ranks."""
        return self._generators.state_dict()

    def load_rng_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on with the draws of a pipeline of the same or of other cuts; all ranks load the same."""
        self._generators.load_state_dict(state)

    def codec_state_dict(self) -> dict[str, Any]:
        """Returns what the codecs of this rank remember from one batch to the next."""
        return state_of(self._crossings)

    def load_codec_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what the codecs of a pipeline with the same cuts remembered."""
        load_state(self._crossings, state)


def _device(device: torch.device | str | None) -> torch.device:
    if device is None:
        return indexed("cuda" if torch.cuda.is_available() else "cpu")
    return indexed(arguments.device("device", device))


def _recomputed(checkpoint: str | Sequence[int], stages: int) -> frozenset[int]:
    if isinstance(checkpoint, str):
        arguments.choice("checkpoint", checkpoint, ("never", "always"))
        return frozenset(range(stages if checkpoint == "always" else 0))
    chosen = arguments.whole_numbers("checkpoint", checkpoint, least=0)
    if not set(chosen) <= set(range(stages)):
        raise ArgumentError(f"checkpoint names the stages {chosen}, but there are 0 to {stages - 1}")
    return frozenset(chosen)
