"""What ranks tell each other about one step: how many rows it has, when it begins, and what its loss was.

::

    first stage's rank  ── begin: rows 4, 4, 3 ──>  its own replica              each plans the same schedule, and
                                                                                 compares which rows they are
                        ─────────────────────────>  the last stages' ranks of    they weigh losses by the rows
                                                    other replicas               of all replicas
    last stage's ranks  ── loss ─────────────────>  everybody                    added up in the same order
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from thinpipe.errors import BatchError, DisagreementError
from thinpipe.runtime.batch_digest import BatchDigest, warn_of_generators
from thinpipe.runtime.control import Control
from thinpipe.runtime.mesh import Mesh
from thinpipe.runtime.words import MOST


@dataclass(frozen=True)
class Rows:
    """How a batch is cut.

    Args:
        own: of each micro-batch of this replica; none if it has no row.
        total: of all replicas; known only where the loss is.
    """

    own: list[int]
    total: int


class Talk:
    """Speaks of steps with all other ranks.

    Args:
        control: how.
        mesh: who is who.
        source: the rank of the first stage, in this replica.
        sink: the rank of the last stage.
    """

    def __init__(self, control: Control, mesh: Mesh, source: int, sink: int) -> None:
        self._control, self._mesh = control, mesh
        self._sources, self._sinks = mesh.twins_of(source), mesh.twins_of(sink)
        self._source, self._sink = source, sink
        self._announced = -1
        self._warned = False
        self._gathered = 0

    def rows(self, step: int, own: Sequence[int] | None, digest: BatchDigest, *, train: bool) -> Rows:
        """Finds out about the rows of a step.

        Args:
            step: its number.
            own: those of this replica's micro-batches, on the rank that has them; None on all others.
            digest: what this rank knows of them.
            train: whether this rank was asked to train.

        Raises:
            BatchError: ranks were asked for different things, or there is not a single row.
            DisagreementError: ranks have different rows.
        """
        if own is not None:
            found = list(own)
            if self._mesh.replicas > 1:
                self.announce(step, found, digest, train=train)  # before this rank waits for others to do the same
        else:
            found, theirs = self._told(step, self._source, train=train)
            self._compare(step, theirs, digest, train=train)
        if self._mesh.replicas == 1 or self._mesh.rank != self._sink:
            return Rows(found, sum(found))
        others = [self._told(step, rank, train=train)[0] for rank in self._sources if rank != self._source]
        total = sum(found) + sum(sum(rows) for rows in others)
        if not total:
            raise BatchError("the batches of all replicas are empty; a step needs at least one row")
        return Rows(found, total)

    def announce(self, step: int, rows: list[int], digest: BatchDigest, *, train: bool) -> None:
        """Tells whoever needs to know that a step begins, once."""
        if self._announced == step:
            return
        self._announced = step
        begin = {"rows": rows, "train": train, "batch": asdict(digest)}
        if self._mesh.replicas == 1:
            self._control.tell("begin", step, begin)
            return
        for rank in {*self._mesh.team, *self._sinks} - {self._mesh.rank}:
            self._control.tell("begin", step, begin, to=rank)

    def _told(self, step: int, source: int, *, train: bool) -> tuple[list[int], BatchDigest]:
        begin = self._control.wait_for("begin", step, source)
        if begin["train"] is not train:
            here, there = ("step", "evaluate") if train else ("evaluate", "step")
            raise BatchError(
                f"rank {source} called {there}() where rank {self._mesh.rank} called {here}(), in step {step}; all "
                "ranks call the same: a batch that one leaves out, all must leave out"
            )
        return [int(each) for each in begin["rows"]], BatchDigest.from_json(begin["batch"])

    def _compare(self, step: int, first: BatchDigest, own: BatchDigest, *, train: bool) -> None:
        ranks = (self._source, self._mesh.rank)
        doubtful = own.verify(first, step=step, ranks=ranks, last=self._mesh.rank == self._sink)
        if doubtful and train and not self._warned:
            self._warned = True
            warn_of_generators(step, ranks)

    def loss(self, step: int, own: Tensor | None, rows: Rows) -> Tensor | None:
        """Tells all ranks the loss, in the last stage's type; None where there is none.

        Args:
            step: its number.
            own: this replica's part of it, on the rank that has it.
            rows: those of the step.

        Raises:
            BatchError: only some replicas have targets.
        """
        is_sink = self._mesh.rank == self._sink
        told: dict[str, Any] = {"rows": sum(rows.own), "loss": None}
        if is_sink:
            if own is not None:
                told["loss"] = (float(own), str(own.dtype).removeprefix("torch."))
            self._control.tell("loss", step, told)
            if self._mesh.replicas == 1:
                return own
        parts = [
            told if rank == self._mesh.rank else self._control.wait_for("loss", step, rank) for rank in self._sinks
        ]
        filled = [part["loss"] for part in parts if part["rows"]]
        if None in filled:
            if any(loss is not None for loss in filled):
                with_targets = [rank for rank, part in zip(self._sinks, parts, strict=True) if part["loss"]]
                raise BatchError(
                    f"of the ranks {self._sinks} only {with_targets} have targets; pass them to all or none"
                )
            return None
        # In the order of replicas, so that all ranks have the same sum.
        return torch.tensor(sum(loss[0] for loss in filled), dtype=getattr(torch, filled[0][1]))

    def gather(self, what: str, value: Any) -> list[Any]:
        """Collects a plain value of every rank, by rank.

        Raises:
            DisagreementError: another rank came with something else.
            ValueError: it is too long for a word between ranks.
        """
        number, self._gathered = self._gathered, self._gathered + 1
        own = {"what": what, "value": value}
        length = len(json.dumps(own))
        if length > MOST // 2:
            raise ValueError(f"{length} bytes for {what!r}; ranks tell each other no more than {MOST // 2} at a time")
        self._control.tell("word", number, own)
        told = [
            own if rank == self._mesh.rank else self._control.wait_for("word", number, rank, what=what)
            for rank in range(self._mesh.world)
        ]
        for rank, each in enumerate(told):
            if each["what"] != what:
                raise DisagreementError(
                    f"rank {self._mesh.rank} came for {what!r} and rank {rank} for {each['what']!r}"
                )
        return [each["value"] for each in told]
