"""One call of a Pipe: its forward now, and its backward when autograd asks for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from thinpipe.links import LocalLink
from thinpipe.runtime.ambient import Ambient
from thinpipe.runtime.autograd import Enter, Leave
from thinpipe.runtime.crew import Crew
from thinpipe.runtime.parameters import Aliases
from thinpipe.runtime.parcel import Edge, Grads, Parcel, back, there
from thinpipe.runtime.randomness import DrawingHabits, StepRandomness
from thinpipe.runtime.timed import run_timed, until_all_are_through
from thinpipe.runtime.transfer import Mover, mark_ready
from thinpipe.runtime.worker import Link, Station, Worker
from thinpipe.schedule import ActionList, gpipe_backward, gpipe_forward, one_line
from thinpipe.stages.microbatch import Batch, Layout, gather
from thinpipe.stages.split import Stage


@dataclass(frozen=True)
class Team:
    """The stages of a pipe and the threads that run them, which outlive every step.

    Args:
        stations: the stages, each with what it has for the life of the pipe.
        drawing: which of them draw random numbers.
        crew: a thread for each.
        busy: held while a half of a step runs, since a stage can do one thing at a time.
    """

    stations: list[Station]
    drawing: DrawingHabits
    crew: Crew
    busy: threading.Lock

    @property
    def stages(self) -> list[Stage]:
        """The parts of the model."""
        return [station.stage for station in self.stations]


class Step:
    """One call of a Pipe.

    Args:
        team: who runs it.
        batch: its input, taken apart.
        recomputed: the micro-batches whose activations are not kept.
        randomness: what each stage does about random numbers.
        wants_graph: whether a backward may follow.
    """

    def __init__(
        self, team: Team, batch: Batch, *, recomputed: frozenset[int], randomness: StepRandomness, wants_graph: bool
    ) -> None:
        self._team = team
        self._batch = batch
        self._recomputed = recomputed
        self._ambient = Ambient.capture([stage.device for stage in team.stages])
        self._layout: Layout | None = None
        self._output_grads: list[Tensor | None] = []
        self._in = Edge(-1, 0)
        self._out = Edge(len(team.stages) - 1, len(team.stages))
        self._wants_grad = [wants_graph and _requires_grad(leaf.value) for leaf in batch.leaves]
        self._workers = [
            Worker(
                station,
                ambient=self._ambient,
                randomness=draws,
                recomputed=recomputed,
                wants_graph=wants_graph,
                threads=self._threads(station.stage),
            )
            for station, draws in zip(team.stations, randomness.stages, strict=True)
        ]

    def _threads(self, stage: Stage) -> int:
        """Shares the cores among the stages that will be computing on them at once."""
        rivals = sum(other.device.type == "cpu" for other in self._team.stages)
        if stage.device.type != "cpu" or rivals < 2 or len(self._batch.rows) == 1:
            return self._ambient.threads
        return max(1, self._ambient.threads // rivals)

    def forward(self) -> Any:
        """Runs the stages forward and returns the model's output, joined to the caller's graph."""
        n, m = len(self._workers), len(self._batch.rows)
        link: LocalLink[Any] = LocalLink()
        for i, leaves in enumerate(self._batch.micro_batches()):
            ready = mark_ready(x.device for x in leaves if isinstance(x, Tensor))
            link.send(there(self._in, i), Parcel(leaves, self._batch.spec, self._wants_grad, ready))
        self._run(gpipe_forward(n, m), link)
        parcels = [link.receive(there(self._out, i)) for i in range(m)]
        with torch.no_grad():
            leaves, self._layout = gather([p.leaves for p in parcels], [p.spec for p in parcels], self._batch.rows)
        wanted = [any(flags) for flags in zip(*(parcel.wants_grad for parcel in parcels), strict=True)]
        return self._layout.nest(self._joined(leaves, wanted))

    def _joined(self, leaves: list[Any], wanted: list[bool]) -> list[Any]:
        """Puts the outputs into the caller's graph, those that have gradients."""
        if not any(wanted):
            return leaves
        inputs = [leaf.value for leaf in self._batch.leaves if isinstance(leaf.value, Tensor)]
        parameters = [parameter for aliases in self._aliases() for parameter in aliases.parameters]
        token = Enter.apply(self, len(inputs), *inputs, *parameters)  # type: ignore[no-untyped-call]
        places = [k for k, wants in enumerate(wanted) if wants]
        joined = Leave.apply(token, self, tuple(places), *(leaves[k] for k in places))  # type: ignore[no-untyped-call]
        for place, tensor in zip(places, joined, strict=True):
            leaves[place] = tensor
        return leaves

    def _aliases(self) -> list[Aliases]:
        return [worker.aliases for worker in self._workers if worker.aliases is not None]

    def output_grads(self, places: tuple[int, ...], grads: tuple[Tensor | None, ...]) -> None:
        """Lays the gradients of the outputs aside, until ``input_grads`` needs them."""
        assert self._layout is not None
        self._output_grads = [None] * len(self._layout.sizes)
        for place, grad in zip(places, grads, strict=True):
            self._output_grads[place] = grad

    def input_grads(self, *, keep_graph: bool, accumulating: list[bool]) -> tuple[Tensor | None, ...]:
        """Runs the stages backward; returns the gradients of the inputs and of the parameters.

        Args:
            keep_graph: whether the same backward may be asked for again.
            accumulating: for each parameter, whether autograd will add to its ``.grad``.
        """
        n, m = len(self._workers), len(self._batch.rows)
        link: LocalLink[Any] = LocalLink()
        for i, grads in enumerate(self._scattered()):
            # Autograd has brought them to the stream of the last stage, which is where they are needed.
            link.send(back(self._out, i), Grads(grads, ready={}))
        with self._team.busy:
            adds = iter(accumulating)
            for aliases in self._aliases():
                aliases.lend_grads(list(islice(adds, len(aliases.parameters))))
            run = self._run_here if self._in_autograd_thread() else self._run
            try:
                run(gpipe_backward(n, m, self._recomputed), link, keep_graph=keep_graph)
            finally:
                parameter_grads = [grad for aliases in self._aliases() for grad in aliases.take_grads()]
        for device, stream in self._ambient.streams.items():
            if torch.cuda.current_stream(device) != stream:
                torch.cuda.current_stream(device).wait_stream(stream)
        return (*self._gathered(link), *parameter_grads)

    def _scattered(self) -> list[list[Tensor | None]]:
        """Splits the gradients of the outputs among the micro-batches."""
        assert self._layout is not None
        grads, self._output_grads = self._output_grads, []
        m = len(self._batch.rows)
        columns = [[None] * m if grad is None else self._layout.scatter(k, grad) for k, grad in enumerate(grads)]
        return [[column[i] for column in columns] for i in range(m)]

    def _gathered(self, link: Link) -> list[Tensor | None]:
        """Collects the gradients of the inputs' tensors from the micro-batches."""
        tensors = [k for k, leaf in enumerate(self._batch.leaves) if isinstance(leaf.value, Tensor)]
        if not any(self._wants_grad):
            return [None] * len(tensors)
        arrived: list[Grads] = [link.receive(back(self._in, i)) for i in range(len(self._batch.rows))]
        leaves = zip(self._batch.leaves, self._wants_grad, strict=True)
        home = [Mover(leaf.value.device) if wants else None for leaf, wants in leaves]
        micro_grads = [
            [
                mover.fetch(grad, grads.ready) if mover is not None and isinstance(grad, Tensor) else None
                for grad, mover in zip(grads.leaves, home, strict=True)
            ]
            for grads in arrived
        ]
        gathered = self._batch.gather_grads(micro_grads)
        return [gathered[k] for k in tensors]

    def _run(self, lists: list[ActionList], link: LocalLink[Any], *, keep_graph: bool = False) -> None:
        """Has every worker execute its list, each in its thread, or all in this one if they could only take turns."""
        if len(self._batch.rows) == 1 and not self._recomputed:
            with until_all_are_through(self._workers), self._team.crew.relieved(), self._ambient.left():
                self._run_here(lists, link, keep_graph=keep_graph)
            return
        jobs = [
            partial(run_timed, worker, actions, link, keep_graph=keep_graph)
            for worker, actions in zip(self._workers, lists, strict=True)
        ]
        try:
            with until_all_are_through(self._workers):
                self._team.crew.run(jobs, link.close, self._doing)
        finally:
            self._restore_threads()

    def _doing(self) -> str:
        """Says what every stage is at, for a reader who wonders why nothing happens."""
        return ", ".join(f"{worker.stage} is at {worker.doing or 'its start'}" for worker in self._workers)

    def _run_here(self, lists: list[ActionList], link: Link, *, keep_graph: bool) -> None:
        """Executes all lists in the calling thread, one action after the other."""
        try:
            for action in one_line(lists):
                run_timed(self._workers[action.stage], [action], link, keep_graph=keep_graph)
        finally:
            self._restore_threads()

    def _restore_threads(self) -> None:
        # PyTorch has every new thread of the process start with the number that was set last, in whatever thread.
        torch.set_num_threads(self._ambient.threads)

    def _in_autograd_thread(self) -> bool:
        """Tells whether this is autograd's own thread for a GPU, as in a backward inside a backward.

        Stages that went backward on that GPU from threads of their own would wait for this one, and this one for them.
        """
        foreign = isinstance(threading.current_thread(), threading._DummyThread)
        return foreign and bool(self._ambient.streams)


def _requires_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
