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
from torch import fx, nn

from thinpipe.stages.skip import Skippable, SkipStore, skippable_layers, skips_in


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
        return not isinstance(m, (nn.Sequential, Skippable)) and id(m) not in self._opened


def compiled(module: nn.Sequential, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """Returns what computes the same as a sequence, compiled; the sequence itself stays as it is.

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
    if stashed != popped:
        return torch.compile(module, *args, **kwargs)
    with skips_in(SkipStore()):
        graph = _Tracer(module).trace(module)
    return torch.compile(fx.GraphModule(module, graph), *args, **kwargs)
