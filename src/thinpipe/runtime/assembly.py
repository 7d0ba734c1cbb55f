"""Makes of a whole model what one rank needs of it: its own stages, and where all edges lead."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from thinpipe import arguments
from thinpipe.errors import BalanceError, SplitError
from thinpipe.runtime.parcel import Edge, edges_out_of
from thinpipe.schedule import in_turn
from thinpipe.stages.part import grafted
from thinpipe.stages.parts import Split
from thinpipe.stages.skip import verify_skippables
from thinpipe.stages.split import Stage, routes, sequences, verify_devices, verify_sequential


class Spread(nn.Module):
    """Calls a stage whose forward takes several arguments: a tuple is spread over them, a dictionary by their names.

    Args:
        module: the stage.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, value: Any) -> Any:
        """Calls the stage."""
        if isinstance(value, tuple):
            return self.module(*value)
        return self.module(**value) if isinstance(value, dict) else self.module(value)


def _takes_several(module: nn.Module) -> bool:
    parameters = list(inspect.signature(module.forward).parameters.values())
    return len(parameters) != 1 or parameters[0].kind in (parameters[0].VAR_POSITIONAL, parameters[0].VAR_KEYWORD)


@dataclass(frozen=True)
class Tie:
    """A parameter that stages of several ranks share.

    Args:
        number: of the tie, the same on all ranks.
        parameter: this rank's copy.
        ranks: those that have one, this one included.
    """

    number: int
    parameter: nn.Parameter
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Assembly:
    """A model cut into stages, as one rank has it.

    Args:
        stages: all stages; those of other ranks without their layers.
        workers: the rank of each stage.
        own: a tree of this rank's layers, under the names they have in the whole model.
        ties: parameters of this rank that others have as well.
        layers: the names of the layers of each stage.
        state: the names of everything that the whole model saves.
    """

    stages: list[Stage]
    workers: tuple[int, ...]
    own: nn.Module
    ties: list[Tie]
    layers: list[list[str]]
    state: frozenset[str]

    @property
    def edges(self) -> list[Edge]:
        """All edges between stages, in an order that is the same on all ranks."""
        return [edge for stage in self.stages[:-1] for edge in edges_out_of(stage)]

    @property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """The pairs of stages that skips join."""
        return tuple(dict.fromkeys((edge.source, edge.target) for edge in self.edges if edge.skip is not None))


def assemble(
    model: nn.Sequential | Sequence[nn.Module],
    balance: Sequence[int] | None,
    workers: Sequence[int] | None,
    *,
    rank: int,
    ranks: Sequence[int],
    device: torch.device,
) -> Assembly:
    """Cuts a model and keeps the stages of one rank.

    Args:
        model: an ``nn.Sequential`` with a balance, or the stages themselves.
        balance: the layers of each stage of an ``nn.Sequential``.
        workers: for each stage the place of its rank in ``ranks`` (default: in turn).
        rank: this one.
        ranks: those that share the model.
        device: where this rank's stages belong.

    Raises:
        SplitError: the model is not what a pipeline can be made of.
        BalanceError: stages, balance, ranks and map do not fit.
        DeviceError: there is no such GPU.
    """
    names, trees, parts = _parts(model, balance)
    n, world = len(parts), len(ranks)
    chosen = in_turn(n, world)
    if workers is not None:
        chosen = tuple(arguments.whole_numbers("map", workers, least=0, error=BalanceError))
    if len(chosen) != n or set(chosen) != set(range(world)):
        raise BalanceError(
            f"{n} stages on {world} ranks: the map {list(chosen)} must name a rank for each stage, and each of the "
            f"ranks 0 to {world - 1} at least once"
        )
    chosen = tuple(ranks[worker] for worker in chosen)
    verify_devices([device], 1)
    ties = _ties(parts, chosen, rank)
    pops, stashes = routes(parts)
    stages = []
    for j, part in enumerate(parts):
        module = part.to(device) if chosen[j] == rank else nn.Sequential()
        stages.append(Stage(j, module, device, sum(len(each) for each in parts[:j]), pops[j], stashes[j]))
    own = grafted([tree for tree, worker in zip(trees, chosen, strict=True) if worker == rank])
    state = frozenset(name for tree in trees for name in tree.state_dict())
    return Assembly(stages, chosen, own, ties, names, state)


def _parts(
    model: nn.Sequential | Sequence[nn.Module], balance: Sequence[int] | None
) -> tuple[list[list[str]], list[nn.Module], list[nn.Sequential]]:
    """Lists for each stage the names of its layers, a tree of them with the model's names, and what is run."""
    if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList):
        verify_sequential(model)
        assert isinstance(model, nn.Sequential)
        if balance is None:
            raise BalanceError("an nn.Sequential is cut by a balance; pass balance=[...], or a list of stages")
        parts = sequences(model, arguments.whole_numbers("balance", balance, error=BalanceError))
        return [list(part._modules) for part in parts], list(parts), parts
    stages = list(model) if isinstance(model, Iterable) else [model]
    if not stages or not all(isinstance(stage, nn.Module) for stage in stages):
        kinds = ", ".join(sorted({type(stage).__name__ for stage in stages})) or "none"
        raise SplitError(
            f"stages are modules, got {kinds}; pass a list of nn.Module, or an nn.Sequential and a balance"
        )
    if balance is not None:
        raise BalanceError("a list of stages is cut already; leave the balance out")
    if isinstance(model, Split):
        parts = sequences(model.sequential(), [1] * len(stages))
        trees, names = stages, model.names
    else:
        parts = [as_sequence(stage) for stage in stages]
        trees, names = [_numbered(j, stage) for j, stage in enumerate(stages)], [[str(j)] for j in range(len(stages))]
    verify_skippables(nn.Sequential(*parts))
    return names, trees, parts


def _numbered(j: int, stage: nn.Module) -> nn.Module:
    """Gives a stage that somebody put into a list a name: its place there."""
    tree = nn.Module()
    tree._modules[str(j)] = stage
    return tree


def as_sequence(stage: nn.Module) -> nn.Sequential:
    """Makes of a module what a stage can run: a sequence, of one layer unless it is one already."""
    if type(stage) is nn.Sequential:
        return stage
    return nn.Sequential(Spread(stage) if _takes_several(stage) else stage)


def _ties(parts: Sequence[nn.Sequential], workers: Sequence[int], rank: int) -> list[Tie]:
    """Finds parameters that stages of several ranks share, of those that this rank has."""
    owners: dict[int, tuple[nn.Parameter, set[int]]] = {}
    for part, worker in zip(parts, workers, strict=True):
        for parameter in part.parameters():
            owners.setdefault(id(parameter), (parameter, set()))[1].add(worker)
    shared = [(parameter, tuple(sorted(ranks))) for parameter, ranks in owners.values() if len(ranks) > 1]
    return [Tie(k, parameter, ranks) for k, (parameter, ranks) in enumerate(shared) if rank in ranks]
