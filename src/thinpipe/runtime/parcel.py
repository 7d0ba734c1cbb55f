"""What crosses a cut: the tensors of one micro-batch on one edge, and later their gradients.

Edges join stages. Most join a stage to the next; a skip joins the stage that stashes to the one that pops. The caller
stands at both ends, as stage ``-1`` before the first and ``n`` after the last::

    caller --(-1,0)--> stage 0 --(0,1)--> stage 1 --(1,2)--> stage 2 --(2,3)--> caller
                          '----------(0,2,'early')--------------^
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten

from thinpipe.runtime.transfer import Mover, Ready, mark_ready
from thinpipe.stages.skip import SkipKey
from thinpipe.stages.split import Stage


@dataclass(frozen=True)
class Edge:
    """A way from one stage to a later one.

    Args:
        source: the stage that sends activations along it.
        target: the stage that sends gradients back.
        skip: the skip it carries; ``None`` for the way from each stage to the next.
    """

    source: int
    target: int
    skip: SkipKey | None = None


def edges_into(stage: Stage) -> list[Edge]:
    """Lists the edges that end in a stage, that of the previous stage first."""
    j = stage.index
    return [Edge(j - 1, j), *(Edge(source, j, key) for key, source in stage.pops.items())]


def edges_out_of(stage: Stage) -> list[Edge]:
    """Lists the edges that begin in a stage, that to the next stage first."""
    j = stage.index
    return [Edge(j, j + 1), *(Edge(j, target, key) for key, target in stage.stashes.items())]


@dataclass(frozen=True)
class Parcel:
    """One micro-batch on one edge: the leaves of a nesting, cut loose from any graph.

    Args:
        leaves: tensors and other values.
        spec: the nesting.
        wants_grad: for each leaf, whether its sender wants a gradient for it.
        ready: when the tensors are computed, if they are on a GPU.
        stashed: whether any of its tensors also travels on another edge, so that nobody may change it in place.
    """

    leaves: list[Any]
    spec: TreeSpec
    wants_grad: list[bool]
    ready: Ready
    stashed: bool = False

    @classmethod
    def of(cls, tree: Any, wants_grad: list[bool], device: torch.device, *, stashed: bool = False) -> Parcel:
        """Packs a nesting that was computed on a device."""
        leaves, spec = tree_flatten(tree)
        loose = [x.detach() if isinstance(x, Tensor) else x for x in leaves]
        return cls(loose, spec, wants_grad, mark_ready([device]), stashed)

    def fetched(self, mover: Mover) -> list[Any]:
        """Brings the tensors to where they are wanted."""
        return [mover.fetch(x, self.ready) if isinstance(x, Tensor) else x for x in self.leaves]


@dataclass(frozen=True)
class Grads:
    """The gradients of one parcel, on their way back; ``None`` where there is none."""

    leaves: list[Tensor | None]
    ready: Ready

    def fetched(self, mover: Mover) -> list[Tensor | None]:
        """Brings the gradients to where they are wanted."""
        return [None if x is None else mover.fetch(x, self.ready) for x in self.leaves]


def can_have_grad(value: Any) -> bool:
    """Tells whether a value is of a kind that has gradients."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
