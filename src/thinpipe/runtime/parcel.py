"""What crosses a cut: the tensors of one micro-batch on one edge, and later their gradients.

Edges join stages. Most join a stage to the next; a skip joins the stage that stashes to the one that pops. The caller
stands at both ends, as stage ``-1`` before the first and ``n`` after the last::

    caller --(-1,0)--> stage 0 --(0,1)--> stage 1 --(1,2)--> stage 2 --(2,3)--> caller
                          '----------(0,2,'early')--------------^
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec

from thinpipe.codecs import Codec, Packet
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


class Cargo(IntEnum):
    """What goes along an edge: activations there, gradients back. The numbers are those on the wire."""

    ACTIVATION = 0
    GRADIENT = 1


class Address(NamedTuple):
    """Where a parcel goes: to the stage at one end of an edge, for a micro-batch."""

    edge: Edge
    micro: int
    cargo: Cargo


def there(edge: Edge, i: int) -> Address:
    """Addresses the activations of a micro-batch on an edge."""
    return Address(edge, i, Cargo.ACTIVATION)


def back(edge: Edge, i: int) -> Address:
    """Addresses their gradients."""
    return Address(edge, i, Cargo.GRADIENT)


def edges_into(stage: Stage) -> list[Edge]:
    """Lists the edges that end in a stage, that of the previous stage first."""
    j = stage.index
    return [Edge(j - 1, j), *(Edge(source, j, key) for key, source in stage.pops.items())]


def edges_out_of(stage: Stage) -> list[Edge]:
    """Lists the edges that begin in a stage, that to the next stage first."""
    j = stage.index
    return [Edge(j, j + 1), *(Edge(j, target, key) for key, target in stage.stashes.items())]


@dataclass(frozen=True)
class Coded:
    """A tensor on its way in a packet.

    Args:
        packet: the tensor, encoded.
        codec: what decodes it.
        value: the tensor, where somebody decoded it on its way.
    """

    packet: Packet
    codec: Codec
    value: Tensor | None = None

    def fetched(self, mover: Mover, ready: Ready) -> Tensor:
        """Brings the packet to where the tensor is wanted, and decodes it there."""
        if self.value is not None:
            return self.value
        sections = tuple(mover.fetch(section, ready) for section in self.packet.sections)
        return self.codec.decode(replace(self.packet, sections=sections))


def _fetched(value: Any, mover: Mover, ready: Ready) -> Any:
    if isinstance(value, Coded):
        return value.fetched(mover, ready)
    return mover.fetch(value, ready) if isinstance(value, Tensor) else value


@dataclass(frozen=True)
class Parcel:
    """One micro-batch on one edge: the leaves of a nesting, cut loose from any graph.

    Args:
        leaves: tensors, packed or not, and other values.
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
    def of(
        cls, leaves: list[Any], spec: TreeSpec, wants_grad: list[bool], device: torch.device, *, stashed: bool = False
    ) -> Parcel:
        """Sends off what was computed on a device."""
        return cls(leaves, spec, wants_grad, mark_ready([device]), stashed)

    def fetched(self, mover: Mover) -> list[Any]:
        """Brings the tensors to where they are wanted."""
        return [_fetched(x, mover, self.ready) for x in self.leaves]


@dataclass(frozen=True)
class Grads:
    """The gradients of one parcel, on their way back; ``None`` where there is none."""

    leaves: Sequence[Tensor | Coded | None]
    ready: Ready

    def fetched(self, mover: Mover) -> list[Tensor | None]:
        """Brings the gradients to where they are wanted."""
        return [_fetched(x, mover, self.ready) for x in self.leaves]


def can_have_grad(value: Any) -> bool:
    """Tells whether a value is of a kind that has gradients."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
