"""Stands aliases in for a stage's parameters while it computes.

A stage builds its graphs out of the caller's sight, one a micro-batch. Were the real parameters their leaves, hooks on
parameters would fire once a micro-batch and ``torch.autograd.grad`` would write into ``.grad``. So the graphs end in
aliases, which share the parameters' memory and version counters, and gather the gradients of all micro-batches; the
pipe then hands their sums to autograd as the gradients of the real parameters, once.

Where a parameter has a gradient already, a second one of its size to be added to it would cost a third of all memory in
a large model. There the alias is lent the gradient itself, micro-batches are added to it in place, and autograd is left
to add a zero that takes no memory, so that everything which waits for it still happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from thinpipe.errors import RecomputeError
from thinpipe.stages.walk import layers_in


def trained_parameters(layers: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Lists the parameters of some layers themselves that get gradients, each once."""
    own = (parameter for layer in layers for parameter in layer._parameters.values())
    return list({id(each): each for each in own if each is not None and each.requires_grad}.values())


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
        layers = layers_in(module)
        self.parameters = trained_parameters(layers)
        self._aliases = [_alias(parameter) for parameter in self.parameters]
        self._versions = [alias._version for alias in self._aliases]
        self._lent: set[int] = set()
        by_id = {id(parameter): alias for parameter, alias in zip(self.parameters, self._aliases, strict=True)}
        self._places = [
            (layer._parameters, name, by_id[id(parameter)])
            for layer in layers
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

    def lend_grads(self, accumulating: Sequence[bool]) -> None:
        """Lends the aliases the gradients that their parameters have already.

        Args:
            accumulating: for each parameter, whether autograd will add to its ``.grad``, and not only return a
                gradient as ``torch.autograd.grad`` does.
        """
        self._lent = {
            k
            for k, (parameter, adds) in enumerate(zip(self.parameters, accumulating, strict=True))
            if adds and _can_be_lent(parameter)
        }
        for k in self._lent:
            self._aliases[k].grad = self.parameters[k].grad

    def own_grads(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Returns the gradients that were gathered apart from the parameters' own, and starts again from nothing."""
        found = [
            (parameter, alias.grad)
            for k, (parameter, alias) in enumerate(zip(self.parameters, self._aliases, strict=True))
            if k not in self._lent and alias.grad is not None
        ]
        self._lent = set()
        for alias in self._aliases:
            alias.grad = None
        return found

    def take_grads(self) -> list[Tensor | None]:
        """Returns what is to be added to the gradient of each parameter, and starts again from nothing."""
        grads = [
            parameter.new_zeros(()).expand_as(parameter) if k in self._lent else alias.grad
            for k, (parameter, alias) in enumerate(zip(self.parameters, self._aliases, strict=True))
        ]
        self._lent = set()
        for alias in self._aliases:
            alias.grad = None
        return grads


def _can_be_lent(parameter: nn.Parameter) -> bool:
    """Tells whether nobody could notice: a hook on the parameter would see the zero, a sparse gradient is replaced."""
    grad = parameter.grad
    return (
        grad is not None and not parameter._backward_hooks and grad.layout == torch.strided and not grad.requires_grad
    )
