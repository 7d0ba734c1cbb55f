"""What a run will need, found out before it is begun: stages, bytes at the cuts, memory.

A few rows are really taken through the model, forward and backward, with the codecs that were chosen; what they left at
the cuts and kept in memory is measured, and multiplied. So skips, masks and the heads of packets are all in it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map_only

from thinpipe.runtime.pipe import Pipe
from thinpipe.schedule import ActionList, Job, Kind, in_turn, plan
from thinpipe.stages.microbatch import row_counts
from thinpipe.stages.parts import Split
from thinpipe.train.bottlenecks import verify_bottlenecks
from thinpipe.train.cuts import cut_model
from thinpipe.train.parts import example, loss, optimizer, stages_of
from thinpipe.train.per_cut import per_cut
from thinpipe.train.precision import precision_of
from thinpipe.train.recipe import Recipe
from thinpipe.train.settings import Settings
from thinpipe.train.spared import Spared
from thinpipe.train.way import Way

_U = (0, 1, 0)
_AHEAD = 1
"""Micro-batches ahead, as ``Pipeline`` and ``Client`` have it."""
_MOST = 2**20
"""Numbers in the inputs of a batch that is taken through the model whole; of a larger one some rows are."""
_FEW = 4


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """One stage.

    Args:
        where: the process or rank that has it.
        layers: the names of what it has.
        parameters: their number.
        weights: bytes of parameters and buffers.
        gradients: bytes, of what is trained.
        optimizer: bytes that the optimizer keeps.
        activations: bytes that are kept for the backward, of as many micro-batches as the schedule has under way.
        held: that many micro-batches.
    """

    where: str
    layers: list[str]
    parameters: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    held: int

    @property
    def memory(self) -> int:
        """All bytes."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True, kw_only=True)
class CutPlan:
    """What crosses one cut in a step, skips that leave there included.

    Args:
        shapes: of the tensors that cross, for one micro-batch.
        forward: bytes of activations, packed.
        raw_forward: bytes before they are packed.
        backward: bytes of gradients, packed.
        raw_backward: bytes before they are packed.
        before_bottleneck: bytes of activations before a bottleneck makes them small; of gradients there are as many.
    """

    shapes: list[list[int]]
    forward: int
    raw_forward: int
    backward: int
    raw_backward: int
    before_bottleneck: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will need.

    Args:
        way: who computes what.
        micro_batches: the rows of each micro-batch of a full batch; with replicas, of one of them.
        exact: whether a whole batch was measured; else some of its rows were, and the bytes are multiplied.
        stages: one for each.
        cuts: one for each; with replicas, what one of them sends.
        summed: bytes of gradients that each copy of the model adds up with the others in a step.
        schedule: its name; None where there is one stage.
    """

    way: Way
    micro_batches: list[int]
    exact: bool
    stages: list[StagePlan]
    cuts: list[CutPlan]
    summed: int
    schedule: str | None

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values."""
        return asdict(self)


def make_plan(recipe: Recipe, settings: Settings) -> Plan:
    """Finds out what a run will need; nothing is written.

    Raises:
        ThinpipeError: the model cannot be cut so.
    """
    verify_bottlenecks(recipe, settings.way)
    split = _split(recipe, settings)
    replicas = settings.replicas or 1
    n, rows = len(split), row_counts(math.ceil(recipe.batch / replicas), recipe.chunks)
    measured = _Measured.of(recipe, settings, split, rows)
    held = [1] * n if settings.way is Way.DATA_PARALLEL else [len(rows)] * n
    if n > 1:
        held = _held(schedule_of(settings, n, len(rows))[1], n)
    ranks = settings.ranks if settings.way is Way.DATA_PARALLEL else 1
    share = max(rows) / (ranks or 1)
    kept = _kept_by_optimizer(recipe)
    whose = _whose(settings, n)
    stages = []
    for j, stage in enumerate(split):
        weights = [*stage.parameters(), *stage.buffers()]
        trained = _size(p for p in stage.parameters() if p.requires_grad)
        stages.append(
            StagePlan(
                where=whose[j],
                layers=list(split.names[j]),
                parameters=sum(p.numel() for p in stage.parameters()),
                weights=_size(weights),
                gradients=trained,
                optimizer=kept * trained,
                activations=math.ceil(measured.activations[j] * share * held[j]),
                held=held[j],
            )
        )
    return Plan(
        way=settings.way,
        micro_batches=rows,
        exact=measured.exact,
        stages=stages,
        cuts=measured.cuts,
        summed=sum(stage.gradients for stage in stages) if settings.way is Way.DATA_PARALLEL or replicas > 1 else 0,
        schedule=settings.order if n > 1 else None,
    )


def schedule_of(settings: Settings, n: int, m: int) -> tuple[Job, list[ActionList]]:
    """Makes the schedule that a run would have, for ``n`` stages and ``m`` micro-batches."""
    workers: tuple[int, ...] | None = None
    if settings.way is Way.CONNECTED:
        workers = _U
    elif settings.way is Way.RANKS:
        workers = settings.workers or in_turn(n, settings.team)
    else:
        workers = in_turn(n, n)
    return plan(settings.order, n, m, workers, ahead=_AHEAD)


def _split(recipe: Recipe, settings: Settings) -> Split:
    if settings.way is Way.CONNECTED:
        return stages_of(recipe)
    return cut_model(recipe, settings) if settings.way in (Way.IN_PROCESS, Way.RANKS) else stages_of(recipe, 1)


def _whose(settings: Settings, n: int) -> list[str]:
    """Tells who has each stage."""
    if settings.way is Way.CONNECTED:
        return ["client", "server", "client"]
    if settings.way is Way.RANKS:
        places = settings.workers or in_turn(n, settings.team)
        sharing = [list(range(place, settings.ranks or 1, settings.team)) for place in places]
        return [f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" for ranks in sharing]
    if settings.way is Way.DATA_PARALLEL:
        return [f"each of {settings.ranks} ranks"]
    return list(settings.device_list() or (settings.device,) * n)


def _held(lists: Sequence[ActionList], n: int) -> list[int]:
    """Tells of how many micro-batches each stage has activations at once."""
    now, most = [0] * n, [0] * n
    for action in (action for each in lists for action in each):
        j = action.stage
        if action.kind is Kind.FORWARD:
            now[j] += 1
            most[j] = max(most[j], now[j])
        elif action.kind in (Kind.BACKWARD, Kind.WEIGHT):
            now[j] -= 1
    return most


def _kept_by_optimizer(recipe: Recipe) -> int:
    """Finds out how many numbers the optimizer keeps for each one that it trains."""
    weight = nn.Parameter(torch.zeros(3))
    probe = optimizer(recipe)([weight])
    weight.grad = torch.ones(3)
    probe.step()
    return sum(isinstance(x, Tensor) and x.shape == weight.shape for x in probe.state[weight].values())


def _size(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class _Measured:
    """What some rows left behind.

    Args:
        exact: whether they were a whole batch.
        cuts: of a whole batch.
        activations: bytes kept for the backward by each stage, for one row.
    """

    exact: bool
    cuts: list[CutPlan]
    activations: list[float]

    @classmethod
    def of(cls, recipe: Recipe, settings: Settings, split: Split, rows: list[int]) -> _Measured:
        one = example(recipe)
        exact = sum(rows) * sum(x.numel() for x in tree_leaves(one) if isinstance(x, Tensor)) <= _MOST
        chunks, count = (len(rows), sum(rows)) if exact else (1, min(_FEW, sum(rows)))
        devices = ["cpu"] * len(split)
        there, back = (per_cut(text, len(split) - 1) for text in (settings.codec, settings.grad_codec))
        pipe = Pipe(split, devices=devices, chunks=chunks, checkpoint="never", codec=there, grad_codec=back).train()
        spared = Spared(pipe, len(split) - 1)
        watches = [_Watch(partition) for partition in pipe.partitions]
        with torch.random.fork_rng(devices=[]), precision_of(recipe):
            torch.manual_seed(0)
            outputs = pipe(tree_map_only(Tensor, lambda x: _random(x, count), one))
            loss(outputs, torch.zeros(count, dtype=torch.long)).backward()
        spared.count(count)
        times, traffic = 1 if exact else sum(rows) / count, pipe.traffic()
        shapes = [_scaled(watch.shapes, count if not exact else max(rows), max(rows)) for watch in watches[1:]]
        cuts = [
            CutPlan(
                shapes=shape,
                forward=math.ceil(sent.packed * times),
                raw_forward=math.ceil(sent.raw * times),
                backward=math.ceil(returned.packed * times),
                raw_backward=math.ceil(returned.raw * times),
                before_bottleneck=math.ceil(wide.raw * times),
            )
            for shape, (sent, returned), (wide, _) in zip(shapes, traffic, spared.added_to(traffic), strict=True)
        ]
        return cls(exact, cuts, [watch.bytes / count for watch in watches])


class _Watch:
    """Counts what the graph of a stage keeps, and notes what comes in.

    Args:
        stage: called in a thread of its own, once for each micro-batch.
    """

    def __init__(self, stage: nn.Module) -> None:
        self.shapes: list[list[int]] = []
        self._kept: dict[int, dict[int, int]] = defaultdict(dict)
        self._calls = 0
        self._own = {tensor.untyped_storage().data_ptr() for tensor in (*stage.parameters(), *stage.buffers())}
        self._entered: list[saved_tensors_hooks] = []
        stage.register_forward_pre_hook(self._before)
        stage.register_forward_hook(self._after)

    @property
    def bytes(self) -> int:
        """What was kept for all micro-batches."""
        return sum(size for kept in self._kept.values() for size in kept.values())

    def _before(self, _: nn.Module, inputs: Any) -> None:
        if not self._calls:
            self.shapes = [list(x.shape) for x in tree_leaves(inputs) if isinstance(x, Tensor)]
        hooks = saved_tensors_hooks(self._pack, lambda tensor: tensor)
        hooks.__enter__()
        self._entered.append(hooks)

    def _after(self, _: nn.Module, inputs: Any, output: Any) -> None:
        self._entered.pop().__exit__(None, None, None)
        self._calls += 1

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._own:
            self._kept[self._calls][storage.data_ptr()] = storage.nbytes()
        return tensor


def _random(one: Tensor, rows: int) -> Tensor:
    """Makes rows like an example's; random numbers, as they are what a codec finds hardest."""
    shape = (rows, *one.shape[1:])
    return torch.randn(shape, dtype=one.dtype) if one.is_floating_point() else one[:1].expand(shape).contiguous()


def _scaled(shapes: list[list[int]], measured: int, rows: int) -> list[list[int]]:
    return [[rows, *shape[1:]] if shape and shape[0] == measured else shape for shape in shapes]
