"""Puts a half at the end or the beginning of a stage, whose own modules keep their names.

::

    stage.state_dict()      features_0_0.weight  ...                                    as they were
                            bottleneck0_sender.0.weight  bottleneck0_sender.0.bias      two more
"""

from __future__ import annotations

from typing import Any

from torch import nn

from thinpipe.bottleneck.error import BottleneckError
from thinpipe.runtime.assembly import as_sequence


class _Extended(nn.Module):
    """A stage that is no plain sequence, and a half, side by side under their own names.

    Args:
        stage: the stage; its children become this module's, and nothing of it is copied.
        name: of the half.
        half: the half.
        last: whether it runs after the stage, and not before it.
    """

    def __init__(self, stage: nn.Module, name: str, half: nn.Module, *, last: bool) -> None:
        training = stage.training
        # Not as a child, which would have a name of its own; and first of all, since a module is born training.
        self.__dict__["_stage"] = stage
        super().__init__()
        self.training = training
        self._modules = {**stage._modules, name: half}
        # The very dictionaries: whoever puts something else in a place, as a worker does with parameters, does so for
        # both.
        self._parameters, self._buffers = stage._parameters, stage._buffers
        self._non_persistent_buffers_set = stage._non_persistent_buffers_set
        self.__dict__["_order"] = (as_sequence(stage), half) if last else (half, as_sequence(stage))

    @property
    def training(self) -> bool:
        """Whether the stage trains: there is one answer, which its own forward may ask for as well."""
        return bool(self.__dict__["_stage"].training)

    @training.setter
    def training(self, mode: bool) -> None:
        self.__dict__["_stage"].training = mode

    def forward(self, value: Any) -> Any:
        """Computes the stage and the half, or the half and the stage."""
        for each in self.__dict__["_order"]:
            value = each(value)
        return value


def appended(stage: nn.Module, name: str, half: nn.Module) -> nn.Module:
    """Returns a stage that runs a half last; it has the stage's own modules."""
    _verify(stage, name)
    if _is_plain(stage):
        return _sequence({**stage._modules, name: half}, stage)
    return _Extended(stage, name, half, last=True)


def prepended(stage: nn.Module, name: str, half: nn.Module) -> nn.Module:
    """Returns a stage that runs a half first; it has the stage's own modules."""
    _verify(stage, name)
    if _is_plain(stage):
        return _sequence({name: half, **stage._modules}, stage)
    return _Extended(stage, name, half, last=False)


def _verify(stage: nn.Module, name: str) -> None:
    if name in stage._modules:
        raise BottleneckError(f"the stage has a {name} already; insert bottlenecks once, into the stages of a model")


def _is_plain(stage: nn.Module) -> bool:
    hooks = (stage._forward_hooks, stage._forward_pre_hooks, stage._backward_hooks, stage._backward_pre_hooks)
    return type(stage) is nn.Sequential and not any(hooks)


def _sequence(layers: dict[str, Any], stage: nn.Module) -> nn.Module:
    sequence = nn.Sequential()
    # Not through `add_module`, which refuses a layer under a name such as "forward" that the stage allowed.
    sequence._modules.update(layers)
    sequence.training = stage.training
    return sequence
