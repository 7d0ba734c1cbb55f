"""Finds the layers that draw random numbers, by watching the default generators while the model runs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn


class Watch:
    """Notes which modules move a default generator in their own forward, and not merely in that of a child.

    Args:
        model: the model to be watched.
        device: the device it runs on.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._names = {module: name for name, module in model.named_modules()}
        self._running: list[tuple[nn.Module, Tensor]] = []
        self.drew: dict[str, nn.Module] = {}

    def run(self, forward: Callable[[], Any]) -> None:
        """Runs the model and watches."""
        hooks = [
            hook
            for module in self._names
            for hook in (module.register_forward_pre_hook(self._enter), module.register_forward_hook(self._leave))
        ]
        try:
            forward()
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._settle()
        self._running.append((module, self._state()))

    def _leave(self, module: nn.Module, _: Any, __: Any) -> None:
        self._settle()
        self._running.pop()
        if self._running:
            parent, _state = self._running.pop()
            self._running.append((parent, self._state()))

    def _settle(self) -> None:
        """Notes whether the innermost running module has drawn since it was last seen."""
        if self._running and not torch.equal(self._running[-1][1], self._state()):
            module = self._running[-1][0]
            self.drew[self._names[module]] = module

    def _state(self) -> Tensor:
        state = torch.default_generator.get_state()
        if self._device.type == "cuda":
            state = torch.cat([state, torch.cuda.get_rng_state(self._device)])
        return state


def drawing(model: nn.Module, device: torch.device, forward: Callable[[], Any]) -> dict[str, nn.Module]:
    """Runs the model and finds the modules that drew random numbers, by name."""
    watch = Watch(model, device)
    watch.run(forward)
    return watch.drew


def hush(model: nn.Module, names: Collection[str]) -> None:
    """Puts the named modules, and not their children, into evaluation mode, where dropout draws nothing.

    The model itself stays as it is: its mode is also that of the pipe, which recomputes nothing in evaluation.
    """
    for name, module in model.named_modules():
        if name and name in names:
            module.training = False
