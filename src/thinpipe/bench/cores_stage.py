"""The stages at once: what a micro-batch takes in each of them while all compute, and nothing is sent.

::

    rank 0    F0 B0 F1 B1 F2 B2
    rank 1    F0─ B0─ F1─ B1─ F2─ B2─     each on its own core, with an input that it has already

Cores that compute at the same time slow each other down: they share caches, the way to memory and often a limit of
power. A profile of the layers on one of them knows nothing of it, these times do. They are those of a full pipeline;
while it fills and empties, fewer cores compute, and each may be faster. The optimizer is not part of them.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from thinpipe.bench.ideal import pipeline_time
from thinpipe.bench.table import Row
from thinpipe.bench.workload import Workload


@dataclass(frozen=True)
class StageTimes:
    """The seconds of one stage for a micro-batch.

    Args:
        forward: with a graph for the backward.
        backward: without recomputation.
    """

    forward: float
    backward: float


class LoneStage:
    """A copy of one stage with an input of its own, which computes without the others and leaves the training alone.

    Args:
        workload: the cell.
        rank: which stage.
        network: all stages; those before this one compute its input.
        images: the batch.
        target: its labels.
    """

    def __init__(self, workload: Workload, rank: int, network: nn.Sequential, images: Tensor, target: Tensor) -> None:
        row = workload.row
        rows = -(-row.batch // row.m)
        end = list(accumulate(row.balance))[rank]
        begin = end - row.balance[rank]
        with torch.no_grad():
            self._input = network[:begin](images[:rows])
        self._layers = copy.deepcopy(network[begin:end])
        self._target = target[:rows] if rank == row.n - 1 else None
        self._differentiable = rank > 0  # nobody asks for the gradient of images
        self._workload = workload

    def times(self) -> StageTimes:
        """Computes all micro-batches, each forward and at once backward, and returns the means."""
        m = self._workload.row.m
        forward = backward = 0.0
        for _ in range(m):
            value = tree_map_only(Tensor, self._received, self._input)
            began = time.perf_counter()
            output = self._forward(value)
            forward += time.perf_counter() - began
            asked = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad]
            gradients = [torch.ones_like(x) for x in asked]  # which would have come in a message
            began = time.perf_counter()
            torch.autograd.backward(asked, gradients)
            backward += time.perf_counter() - began
        self._layers.zero_grad()
        return StageTimes(forward / m, backward / m)

    def _received(self, value: Tensor) -> Tensor:
        return value.detach().requires_grad_(self._differentiable and value.is_floating_point())

    def _forward(self, value: Any) -> Any:
        output = self._layers(value)
        return output if self._target is None else self._workload.loss(output, self._target)


class AtOnce:
    """Keeps what the stages took at once, round after round, and says what a pipeline could make of it.

    Args:
        row: the cell.
        measure: has all stages compute at once.
    """

    def __init__(self, row: Row, measure: Callable[[], list[StageTimes]]) -> None:
        self._row, self._measure = row, measure
        self._rounds: list[list[StageTimes]] = []

    def variant(self) -> None:
        """Takes the turn of a round."""
        self._rounds.append(self._measure())

    def ideals(self, rounds: int) -> list[float]:
        """Returns the least seconds of GPipe's schedule for the stages, in each of the last rounds."""
        return [
            pipeline_time([x.forward for x in stages], [x.backward for x in stages], self._row.m, self._row.checkpoint)
            for stages in self._rounds[-rounds:]
        ]

    def settings(self, rounds: int) -> dict[str, list[float]]:
        """Lists the seconds of each stage, medians over the last rounds, for a record."""
        by_stage = list(zip(*self._rounds[-rounds:], strict=True))
        return {
            "stage_forward_seconds_at_once": [statistics.median(x.forward for x in stage) for stage in by_stage],
            "stage_backward_seconds_at_once": [statistics.median(x.backward for x in stage) for stage in by_stage],
        }
