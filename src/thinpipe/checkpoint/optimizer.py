"""An optimizer's state by the names of weights, which are the same however a model is cut.

Not by ``get_optimizer_state_dict`` of dcp: where an optimizer has no state yet, that takes a step to make one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe.errors import ArgumentError, CheckpointError
from thinpipe.stages.names import listed

_NOT_OPTIONS = ("params", "param_names")


@dataclass(frozen=True)
class OptimizerState:
    """What an optimizer has for some weights.

    Args:
        tensors: by the name of a weight, a slash, and what the optimizer calls it.
        plain: other values of a weight, by its name and what the optimizer calls them.
        groups: options, and under ``params`` the names of the weights that they are for.
        also: other names of weights that have several.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    plain: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    also: dict[str, str] = field(default_factory=dict)


def verify_optimizer(optimizer: Any) -> None:
    """Checks that something is an optimizer, or at least looks like one to whoever saves and loads it.

    Raises:
        ArgumentError: it is something else, such as a function that makes one.
    """
    if optimizer is not None and not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "load_state_dict")):
        raise ArgumentError(f"optimizer must be a torch.optim.Optimizer, got {optimizer!r:.100}")


def state_of(optimizer: torch.optim.Optimizer, module: nn.Module) -> OptimizerState:
    """Reads the state of an optimizer.

    Raises:
        CheckpointError: it has weights that the module has not, or something that cannot be saved.
    """
    found = OptimizerState()
    names = _names(module)
    order = _order(optimizer, names)
    found.also.update({other: group[0] for group in names.values() for other in group[1:]})
    state = optimizer.state_dict()
    for index, values in state["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                found.tensors[f"{order[index]}/{key}"] = value
            else:
                found.plain.setdefault(order[index], {})[key] = _plain(value, f"{key} of {order[index]}")
    for group in state["param_groups"]:
        options = {key: _plain(value, key) for key, value in group.items() if key not in _NOT_OPTIONS}
        found.groups.append({**options, "params": [order[index] for index in group["params"]]})
    return found


def restore(optimizer: torch.optim.Optimizer, names: list[str], saved: OptimizerState) -> None:
    """Gives an optimizer the state that was saved for its weights; groups may have been others.

    Args:
        optimizer: the optimizer.
        names: those of its weights, from ``matched``.
        saved: the state.

    Raises:
        CheckpointError: weights of one group had different options.
    """
    state = optimizer.state_dict()
    options = {name: group for group in saved.groups for name in group["params"]}
    for group in state["param_groups"]:
        theirs = [names[index] for index in group["params"]]
        for key in (key for key in group if key not in _NOT_OPTIONS):
            values: dict[str, str] = {}
            for name in theirs:
                if key in options[name]:
                    values.setdefault(json.dumps(options[name][key]), name)
            if len(values) > 1:
                (one, first), (other, second), *_ = values.items()
                raise CheckpointError(
                    f"{first} and {second} are in one group of the optimizer, and were saved with {key} {one} and "
                    f"{other}; make groups as they were"
                )
            if values:
                group[key] = _like(group[key], json.loads(next(iter(values))))
    by_name: dict[str, dict[str, Any]] = {name: dict(values) for name, values in saved.plain.items()}
    for key, value in saved.tensors.items():
        name, _, what = key.rpartition("/")
        by_name.setdefault(name, {})[what] = value
    state["state"] = {index: by_name[name] for index, name in enumerate(names) if name in by_name}
    optimizer.load_state_dict(state)


def matched(optimizer: torch.optim.Optimizer, module: nn.Module, saved: OptimizerState) -> list[str]:
    """Finds, for each weight of an optimizer, the name under which its state was saved.

    Raises:
        CheckpointError: some are missing, or some that were saved have no weight in this optimizer.
    """
    names = _names(module)
    known = dict.fromkeys(name for group in saved.groups for name in group["params"])
    chosen: list[str] = []
    missing: list[str] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            own = names.get(id(parameter)) or [_stranger()]
            found = next((name for name in (*own, *(saved.also.get(name, "") for name in own)) if name in known), None)
            chosen.append(found or own[0])
            missing += [] if found else [own[0]]
    if missing:
        raise CheckpointError(f"the checkpoint has no state of the optimizer for {listed(missing)}")
    taken = {name for parameter in _parameters(optimizer) for name in names[id(parameter)]}
    here = {name for group in names.values() for name in group}
    left = [name for name in known if name in here and name not in taken and name not in chosen]
    if left:
        raise CheckpointError(f"the checkpoint has state of the optimizer for {listed(left)}, which it does not train")
    return chosen


def _names(module: nn.Module) -> dict[int, list[str]]:
    """Lists the names of each parameter."""
    found: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return found


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _order(optimizer: torch.optim.Optimizer, names: Mapping[int, list[str]]) -> list[str]:
    return [(names.get(id(parameter)) or [_stranger()])[0] for parameter in _parameters(optimizer)]


def _stranger() -> str:
    raise CheckpointError("the optimizer has a parameter that is not the model's; make it of model.parameters()")


def _plain(value: Any, what: str) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{what} of the optimizer is a {type(value).__name__}, which is not saved") from error


def _like(old: Any, new: Any) -> Any:
    """Gives a value that was written as JSON the type that it had."""
    if isinstance(old, Tensor):
        return torch.full_like(old, new)
    return tuple(new) if isinstance(old, tuple) else new
