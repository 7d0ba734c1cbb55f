"""``Codec``: tensor to packet, packet to tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, Raw
from thinpipe.codecs.order import Order, inverse, memory_order, reordered
from thinpipe.codecs.packet import DTYPES, Packet, header_size
from thinpipe.errors import CodecError, PacketError

MOST_EXPANSION = 1 << 22
"""A packet may ask for so many times its own length of memory, and no more; ``topk`` of a tiny share honestly does."""

_ALLOWANCE = 1 << 20


class Codec:
    """Packs tensors small; made by ``thinpipe.codec(text)``.

    Floating-point tensors are coded; all others (integers, booleans, complex numbers) travel exactly. A tensor with
    values that are not finite comes back with such values, and what shares a scale with them is NaN: an overflow is
    never hidden.

    Args:
        coder: what it is made of.
    """

    def __init__(self, coder: Coder) -> None:
        self.coder = coder

    @property
    def spec(self) -> str:
        """The text that makes the same codec, defaults written out."""
        return str(self.coder)

    def __repr__(self) -> str:
        return f"codec({self.spec!r})"

    @property
    def fixed_rate(self) -> bool:
        """Whether a packet's length follows from the tensor's shape and type alone."""
        return self.coder.fixed

    def encode(self, tensor: Tensor) -> Packet:
        """Packs a tensor.

        Raises:
            CodecError: the tensor is not an ordinary dense one.
        """
        if tensor.layout is not torch.strided or tensor.dtype not in DTYPES or tensor.is_meta:
            raise CodecError(f"a packet holds a dense tensor of an ordinary type, got {tensor.layout} {tensor.dtype}")
        coder = self._coder_for(tensor.dtype)
        x = tensor.detach()
        order = memory_order(x)
        lies = x.permute(order).contiguous()
        dense = reordered(lies, order, _coded_order(coder, order), _copied_as(coder, x.dtype))
        sections = coder.pack(dense) if x.numel() else [_nothing(x.device)] * len(coder.sizes(dense.shape, x.dtype))
        return Packet(self.spec, x.dtype, x.shape, order, tuple(sections))

    def decode(self, packet: Packet, *, consume: bool = False) -> Tensor:
        """Unpacks a tensor, of the shape, type and memory order that was packed, on the packet's device.

        Args:
            packet: the packet.
            consume: whether nobody will look at the packet again, so that its memory may become the tensor's
                (default: no).

        Raises:
            PacketError: the packet is another codec's, or cannot be one of this codec's.
        """
        if packet.spec != self.spec:
            raise PacketError(f"a packet of the codec {packet.spec!r} came where one of {self.spec!r} was expected")
        coder = self._coder_for(packet.dtype)
        order = _coded_order(coder, packet.order)
        moves = order != packet.order
        shape = torch.Size(packet.shape[dim] for dim in order)
        _check(packet, coder, shape)
        if not shape.numel():
            dense = torch.empty(shape, dtype=packet.dtype, device=packet.device)
        elif consume and isinstance(coder, Raw):
            dense = coder.taken(packet.sections, shape, packet.dtype)
        else:
            dense = coder.unpack(packet.sections, shape, _copied_as(coder, packet.dtype) if moves else packet.dtype)
        return reordered(dense, order, packet.order, packet.dtype).permute(inverse(packet.order))

    def nbytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> int:
        """Tells how long a tensor's packet is, header included; for a codec that is not of fixed rate, at most."""
        shape = torch.Size(shape)
        sizes = self._coder_for(dtype).sizes(shape, dtype)
        return header_size(self.spec, len(shape), len(sizes)) + (sum(sizes) if shape.numel() else 0)

    def _coder_for(self, dtype: torch.dtype) -> Coder:
        return self.coder if dtype.is_floating_point else Raw()

    def for_gradient_of(self, packet: Packet) -> Codec:
        """Makes the codec for the gradient of the tensor that a packet carried.

        This codec itself, most of the time. Where both choose the same share of elements (``topk``), the gradient has
        the elements that the packet chose: their indices are known on both sides and need not travel again.
        """
        coder = self.coder.for_gradient_of(packet)
        return self if coder is self.coder else Codec(coder)

    def state_dict(self) -> dict[str, Any]:
        """Returns what the codec remembers from one tensor to the next; empty for most."""
        return self.coder.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what another codec of the same text remembered."""
        self.coder.load_state_dict(state)


def _check(packet: Packet, coder: Coder, shape: torch.Size) -> None:
    """Believes a packet only after its lengths agree with its shape: nothing was allocated for it until here.

    ``sizes`` takes no longer for a large shape than for a small one.
    """
    wanted = coder.sizes(shape, packet.dtype) if shape.numel() else [0] * len(packet.sections)
    given = [section.numel() for section in packet.sections]
    fits = given == wanted if coder.fixed else all(a <= b for a, b in zip(given, wanted, strict=False))
    if len(given) != len(wanted) or not fits:
        raise PacketError(f"{tuple(shape)} in {packet.spec!r} takes sections of {wanted} bytes, got {given}")
    check_expansion(packet, MOST_EXPANSION)


def check_expansion(packet: Packet, most: int) -> None:
    """Refuses a packet that asks for more than ``most`` times its own length of memory.

    Raises:
        PacketError: it does.
    """
    memory = packet.shape.numel() * packet.dtype.itemsize
    if memory > _ALLOWANCE + most * packet.nbytes:
        raise PacketError(f"a packet of {packet.nbytes} bytes asks for {memory} bytes of memory")


def _coded_order(coder: Coder, order: Order) -> Order:
    """Tells in which order of its dimensions a tensor is coded, that lies in memory in some order."""
    return tuple(range(len(order))) if coder.shaped else order


def _copied_as(coder: Coder, dtype: torch.dtype) -> torch.dtype:
    """Tells the type of a copy between memory and the coder."""
    return torch.float32 if coder.single and dtype != torch.float64 else dtype


def _nothing(device: torch.device) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device)
