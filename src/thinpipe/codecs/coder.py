"""What a codec is made of: coders, each of which turns a tensor into sections of bytes and back.

A coder of values (``uniform:8``) writes sections itself. A coder of shape (``topk:0.1``, ``power:3``) first turns the
tensor into smaller ones, and hands those to the next coder of the chain::

    "topk:0.1|uniform:8|zstd"   =   Zstd(TopK(0.1, inner=Uniform(8)))

How many sections there are, and how long each is, follows from the tensor's shape and type alone; only a lossless
coder makes them shorter. So a receiver knows what must come before it believes a byte of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thinpipe.codecs.packet import Packet
from thinpipe.errors import CodecError
from thinpipe.kernels import kernels_for
from thinpipe.kernels.planes import packed_size


class Coder(ABC):
    """Turns a floating-point tensor into sections of bytes, and back.

    ``str(coder)`` is the text that makes the same coder.
    """

    shaped = False
    """Whether it matters which elements are neighbours in the tensor; if not, memory order will do, and is fastest.

    A block of pixels of one channel has much less to tell than one of all channels of a pixel, which is what lies
    together in a tensor of ``channels_last``.
    """

    single = False
    """Whether it makes float32 of whatever it is given; then what is copied for it anyway is copied as that."""

    fixed = True
    """Whether ``sizes`` are exact; if not, they are the most."""

    @abstractmethod
    def pack(self, x: Tensor) -> list[Tensor]:
        """Writes the sections, on the tensor's device; the tensor is contiguous and has elements."""

    @abstractmethod
    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Reads the sections, which have the lengths that ``sizes`` told.

        Raises:
            PacketError: their content cannot have been written by ``pack``.
        """

    @abstractmethod
    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        """Tells how long each section is, or is at most."""

    def for_gradient_of(self, packet: Packet) -> Coder:
        """Makes the coder for the gradient of the tensor in a packet; this one, unless the packet tells it more."""
        return self

    def reused_sizes(self, shape: torch.Size) -> list[int]:
        """Tells how long the first sections of a packet are, those that a gradient's coder reuses (default: none)."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Returns what it remembers from one tensor to the next: tensors and numbers."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what another coder of the same text remembered."""
        if state:
            raise CodecError(f"{self} remembers nothing, but was given {', '.join(state)}")


class Wrapper(Coder):
    """A coder in front of another.

    Args:
        inner: the next of the chain.
    """

    def __init__(self, inner: Coder) -> None:
        self.inner = inner
        self.fixed = inner.fixed

    def chained(self, text: str) -> str:
        """Writes this coder's own text, and the next one's where there is more than the elements as they are."""
        inner = str(self.inner)
        return text if inner == "none" else f"{text}|{inner}"

    def own_state(self) -> dict[str, Any]:
        """Returns what this coder itself remembers."""
        return {}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what this coder itself remembers."""
        super().load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Returns its own memory and, under ``inner.``, that of the rest of the chain."""
        inner = self.inner.state_dict()
        return {**self.own_state(), **{f"inner.{key}": value for key, value in inner.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over memories; see ``state_dict``."""
        inner = {key.removeprefix("inner."): value for key, value in state.items() if key.startswith("inner.")}
        self.load_own_state({key: value for key, value in state.items() if not key.startswith("inner.")})
        self.inner.load_state_dict(inner)


class Raw(Coder):
    """The elements as they are, booleans eight in a byte."""

    def __str__(self) -> str:
        return "none"

    def pack(self, x: Tensor) -> list[Tensor]:
        flat = x.reshape(-1)
        if x.dtype == torch.bool:
            return [kernels_for(x.device).pack(flat.to(torch.uint8), 1)]
        return [flat.view(torch.uint8)]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        if dtype == torch.bool:
            return kernels_for(sections[0].device).unpack(sections[0], shape.numel(), 1).to(torch.bool).view(shape)
        # A copy: a section may begin anywhere in a message, a tensor of floats may not.
        return sections[0].clone().view(dtype).view(shape)

    def taken(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Makes the tensor of the section's own memory, if it begins where the type may be; else unpacks it."""
        (section,) = sections
        if dtype == torch.bool or section.device.type != "cpu" or section.data_ptr() % dtype.itemsize:
            return self.unpack(sections, shape, dtype)
        # By way of numpy, to be no view of the message: two tensors of one message would count their changes in common.
        return torch.from_numpy(section.numpy()).view(dtype).view(shape)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        return [packed_size(shape.numel(), 1) if dtype == torch.bool else shape.numel() * dtype.itemsize]


def working(x: Tensor) -> Tensor:
    """Returns the elements in a row, in the type they are computed in: float64 as it is, all else as float32."""
    flat = x.reshape(-1)
    return flat if x.dtype == torch.float64 else flat.to(torch.float32)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Tells the type that ``working`` computes in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def restored(values: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Returns decoded values, which are nobody else's, as a tensor of the type and shape that was encoded.

    A grid may end a little above the greatest value; in a small type that must not become an infinity.
    """
    most = torch.finfo(dtype).max
    if most < torch.finfo(values.dtype).max:
        values.clamp_(-most, most)
    return values.to(dtype).view(shape)


def from_bytes(section: Tensor, dtype: torch.dtype) -> Tensor:
    """Reads numbers from a section, wherever it begins."""
    return section.clone().view(dtype)


def to_bytes(numbers: Tensor) -> Tensor:
    """Writes numbers as a section."""
    return numbers.contiguous().view(-1).view(torch.uint8)
