"""What a client and a server agree on before they train, and how one that disagrees is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from thinpipe import arguments
from thinpipe.codecs import codec
from thinpipe.errors import DisagreementError, PacketError, SpecError

CUTS = 2
"""Of a U: behind the client's first part, and behind the server's."""

MOST_CHUNKS = 1 << 12
_RANGES = {"chunks": (1, MOST_CHUNKS), "ahead": (0, MOST_CHUNKS), "seed": (0, 2**63), "every": (1, 2**31)}


@dataclass(frozen=True)
class Terms:
    """How the two halves train together; the client chooses, the server accepts or refuses.

    Args:
        chunks: the number of micro-batches.
        schedule: of the pipeline.
        ahead: see ``Pipeline``.
        codecs: for each cut the codec of activations and that of gradients; None sends them as they are.
        seed: of the server's first weights, and of everything that is drawn in a step.
        deferred_batch_norm: whether BatchNorm moves its running statistics once a batch.
        every: after how many steps both halves save.
    """

    chunks: int
    schedule: str
    ahead: int
    codecs: tuple[tuple[str | None, str | None], ...]
    seed: int
    deferred_batch_norm: bool
    every: int

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            arguments.whole(name, getattr(self, name), least=least, most=most)
        arguments.flag("deferred_batch_norm", self.deferred_batch_norm)

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Terms:
        """Reads what ``to_json`` said, off a wire.

        Raises:
            PacketError: it makes no sense.
        """
        if not isinstance(value, dict) or set(value) != {field.name for field in fields(cls)}:
            raise PacketError(f"terms that make no sense: {value!r:.300}")
        for name, (least, most) in _RANGES.items():
            if type(value[name]) is not int or not least <= value[name] <= most:
                raise PacketError(f"terms whose {name} is {value[name]!r:.50}, not a number from {least} to {most}")
        if type(value["schedule"]) is not str or type(value["deferred_batch_norm"]) is not bool:
            raise PacketError(f"terms that make no sense: {value!r:.300}")
        return cls(**(value | {"codecs": _codecs(value["codecs"])}))

    @property
    def specs(self) -> frozenset[str]:
        """All codecs."""
        return frozenset(spec for pair in self.codecs for spec in pair if spec is not None)


def _codecs(value: Any) -> tuple[tuple[str | None, str | None], ...]:
    known = isinstance(value, list | tuple) and len(value) == CUTS
    if not known or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
        raise PacketError(f"there are {CUTS} cuts with two codecs each, got {value!r:.200}")
    for spec in (spec for pair in value for spec in pair):
        if spec is None:
            continue
        if not isinstance(spec, str) or len(spec) > 200:
            raise PacketError(f"{spec!r:.200} names no codec")
        try:
            codec(spec)
        except SpecError as error:
            raise PacketError(f"{spec!r:.200} names no codec: {error}") from error
    return tuple((pair[0], pair[1]) for pair in value)


def shapes_of(tree: Any) -> list[list[Any]]:
    """Describes one row of every tensor in a nesting: its type, and its shape without the rows."""
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return [[str(x.dtype).removeprefix("torch."), list(x.shape[1:])] for x in tensors]


def blank_of(shapes: Any) -> Tensor | None:
    """Makes one row of zeros of what ``shapes_of`` described; None if that was not a single tensor.

    Raises:
        PacketError: it describes nothing.
    """
    try:
        if len(shapes) != 1:
            return None
        ((name, shape),) = shapes
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype) or not all(type(size) is int and 0 <= size < 2**24 for size in shape):
            raise ValueError
        return torch.zeros((1, *shape), dtype=dtype, device="meta")
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise PacketError(f"shapes that make no sense: {shapes!r:.200}") from error


def verify_same(here: Mapping[str, Any], there: Mapping[str, Any], *, us: str, them: str) -> None:
    """Compares what two sides say of the same things.

    Raises:
        DisagreementError: they differ; the message has both values.
    """
    for name, value in here.items():
        if there.get(name) != value:
            raise DisagreementError(
                f"{us} and {them} disagree about the {name}: {value!r:.300} {us}, {there.get(name)!r:.300} {them}"
            )
