"""Stands aliases in for a stage's parameters while it computes.

A stage builds its graphs out of the caller's sight, one a micro-batch. Were the real parameters their leaves, hooks on
parameters would fire once a micro-batch and ``torch.autograd.grad`` would write into ``.grad``. So the graphs end in
aliases, which share the parameters' memory and version counters, and gather the gradients of all micro-batches; the
pipe then hands their sums to autograd as the gradients of the real parameters, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from thinpipe.errors import RecomputeError


def trained_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Lists the parameters of a module that get gradients, each once."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _alias(parameter: nn.Parameter) -> Tensor:
    if type(parameter) is nn.Parameter:
        return nn.Parameter(parameter)
    return parameter.detach().requires_grad_()  # keeps a subclass what it is


class Aliases:
    """The aliases of one stage's parameters in one step.

    Args:
        module: the stage's layers.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = trained_parameters(module)
        self._aliases = [_alias(parameter) for parameter in self.parameters]
        self._versions = [alias._version for alias in self._aliases]
        by_id = {id(parameter): alias for parameter, alias in zip(self.parameters, self._aliases, strict=True)}
        self._places = [
            (layer._parameters, name, by_id[id(parameter)])
            for layer in module.modules()
            for name, parameter in layer._parameters.items()
            if id(parameter) in by_id
        ]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Stands the aliases in for the parameters."""
        # What is there now need not be what was there at first: an outer pipe's aliases come and go as well.
        before = [parameters[name] for parameters, name, _ in self._places]
        for parameters, name, alias in self._places:
            parameters[name] = alias  # type: ignore[assignment]
        try:
            yield
        finally:
            for (parameters, name, _), parameter in zip(self._places, before, strict=True):
                parameters[name] = parameter

    def check_unchanged(self) -> None:
        """Checks that a recomputation would see the weights that the forward saw.

        Raises:
            RecomputeError: somebody changed a parameter in between.
        """
        if any(alias._version != version for alias, version in zip(self._aliases, self._versions, strict=True)):
            raise RecomputeError(
                "a parameter was changed between forward and backward, so the activations cannot be recomputed; "
                "call optimizer.step() after backward(), or use checkpoint='never'"
            )

    def take_grads(self) -> list[Tensor | None]:
        """Returns the gradients gathered so far, one a parameter, and starts again from nothing."""
        grads = [alias.grad for alias in self._aliases]
        for alias in self._aliases:
            alias.grad = None
        return grads
