"""Compiles a stage as one graph, skip connections included.

PyTorch's compiler does not follow the generators that layers stash and pop with, and a graph that breaks at every
residual block gains nothing. So the sequence is traced first: the commands are obeyed once, by stand-ins for tensors,
and what is left is a list of calls in which a skip is one more argument::

    conv, bn, [stash], conv, bn, [pop, add]      ->      a = bn(conv(x));  b = bn(conv(a));  return b + a
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from thinpipe.stages.skip import Skippable, SkipStore, skippable_layers, skips_in
from thinpipe.stages.walk import layers_in


class _Tracer(fx.Tracer):
    """Looks into sequences and layers with skips, and nowhere else: all others are called as they are.

    Args:
        module: what is traced.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._opened = {id(layer.module) for _, layer in skippable_layers(module)}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Tells whether a module is called as it is."""
        plain = type(m).forward is nn.Sequential.forward  # one that does more than call its layers is called
        return not (plain or isinstance(m, Skippable) or id(m) in self._opened)


class _Usual:
    """Computes what comes most of the time by a compiled module, and all else by the module as it is.

    A graph is for one shape, and takes a minute: an epoch's last batch and its tests are over sooner as they are.
    PyTorch never again compiles what it was once asked to under a mode that looks at every operator, as a pipe has to
    in its first steps; such calls are kept from it.

    Args:
        plain: the module.
        fast: the same, compiled. What it is first called with is what comes most of the time.
    """

    def __init__(self, plain: nn.Module, fast: Callable[[Any], Any]) -> None:
        self._plain, self._fast = plain, fast
        self._layers = layers_in(plain)[1:]  # the modes of layers change with their model's; a stage is no part of it
        self._usual: tuple[list[bool], list[torch.Size | None]] | None = None

    def __call__(self, value: Any) -> Any:
        if _get_current_dispatch_mode() is not None:
            return self._plain(value)
        shapes = [x.shape if isinstance(x, Tensor) else None for x in tree_leaves(value)]
        case = ([layer.training for layer in self._layers], shapes)
        self._usual = self._usual or case
        return self._fast(value) if case == self._usual else self._plain(value)


def compiled(module: nn.Sequential, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """Returns what computes the same as a sequence, compiled; the sequence itself stays as it is.

    The shape that comes first is compiled, in training or evaluation, whichever comes first, and others are not. With
    ``dynamic=True`` all are.

    Args:
        module: the sequence. One whose skips come from or go to elsewhere is compiled in pieces, between them.
        args: of ``torch.compile``.
        kwargs: of ``torch.compile``.
    """
    # The compiler looks at the .grad of every input, and a stage's is the output of a node, of which PyTorch warns.
    warnings.filterwarnings(
        "ignore", "The .grad attribute of a Tensor that is not a leaf", module=r"torch\.(_dynamo|_subclasses)"
    )
    stashed = {key for _, layer in skippable_layers(module) for key in layer.stashable()}
    popped = {key for _, layer in skippable_layers(module) for key in layer.poppable()}
    whole: nn.Module = module
    if stashed == popped:
        with skips_in(SkipStore()):
            whole = fx.GraphModule(module, _Tracer(module).trace(module))
    fast = torch.compile(whole, *args, **kwargs)
    return fast if kwargs.get("dynamic") else _Usual(module, fast)
