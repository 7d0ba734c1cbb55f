"""Codecs for pipelines of ``torch.distributed.pipelining``, by way of the modules that it is given.

Its stages send what a module returns, and send back a gradient of the same shape; both must be of floating point. So a
message is a tensor of ``float32`` whose bytes are a packet's sections, as long as the longer of the two ways needs::

    rank 0   first -> pack  ==== words, forward ====>  unpack -> second   rank 1
                     unpack <=== words, backward ====  pack

Nobody may compute with such words: most are no numbers. Stages do not; they copy, send and receive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from thinpipe.codecs import Codec, Packet, codec
from thinpipe.errors import BatchError, CodecError

_WORD = torch.float32.itemsize

__all__ = ["CodedCut"]


class CodedCut:
    """A cut between two stages that is crossed in packets; both ranks make the same one.

    ::

        cut = CodedCut((8, 128, 768), codec="block:8", grad_codec="block:8")
        stage = PipelineStage(cut.sender(first), 0, 2, device)      # on rank 0
        stage = PipelineStage(cut.receiver(second), 1, 2, device)   # on rank 1
        right.sender(left.receiver(middle))                         # a stage between two cuts

    Args:
        shape: of what crosses for one micro-batch; stages want all micro-batches alike.
        codec: packs activations (default: nothing does).
        grad_codec: packs gradients (default: nothing does). Messages are of one length both ways, so a codec for one
            way alone makes none of them shorter.
        dtype: of what crosses (default: ``torch.float32``).

    Raises:
        CodecError: a codec is not of fixed rate, or remembers something from one tensor to the next.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        codec: str | Codec | None = None,
        grad_codec: str | Codec | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.shape, self.dtype = torch.Size(shape), dtype
        self._forward, self._backward = _usable(codec), _usable(grad_codec)
        example = torch.zeros(self.shape, dtype=dtype)
        there = self._forward.encode(example)
        back = self._backward.for_gradient_of(there).encode(example)
        self._there, self._back = _lengths(there), _lengths(back)
        for each in (self._forward, self._backward):
            if each.state_dict():
                raise CodecError(
                    f"{each.spec!r} remembers something of each tensor, and stages try their modules on tensors that "
                    "are none of yours; use a codec without ef(...), power or ,sr"
                )
        self.words = -(-max(sum(self._there), sum(self._back)) // _WORD)
        """The elements of a message, of ``float32``."""

    @property
    def ratio(self) -> float:
        """Bytes that travel over bytes of the tensor, either way."""
        return self.words * _WORD / (self.shape.numel() * self.dtype.itemsize)

    def message(self) -> Tensor:
        """Makes an example of a message, for a stage's ``input_args`` or ``output_args``.

        A stage that has both examples does not try its module on words of its own, which codecs with indices
        (``topk``) take for damage. It wants a gradient, which is how a stage knows that one comes back.
        """
        return torch.zeros(self.words, requires_grad=True)

    def sender(self, module: nn.Module) -> nn.Module:
        """Wraps the module before the cut: it returns messages."""
        return _Sender(module, self)

    def receiver(self, module: nn.Module) -> nn.Module:
        """Wraps the module after the cut: it takes messages."""
        return _Receiver(module, self)

    def pack(self, x: Tensor) -> Tensor:
        """Makes a message of a tensor; its gradient is one, too.

        Raises:
            BatchError: the tensor is not what the cut was made for.
        """
        if not isinstance(x, Tensor) or x.shape != self.shape or x.dtype != self.dtype:
            told = f"{tuple(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
            raise BatchError(
                f"a tensor {tuple(self.shape)} of {self.dtype} crosses this cut, got {told}; make the cut for the "
                "shape of a micro-batch, and batches that divide into such"
            )
        return _Pack.apply(x, self)  # type: ignore[no-any-return, no-untyped-call]

    def unpack(self, message: Tensor) -> Tensor:
        """Makes the tensor of a message; its gradient becomes a message.

        Raises:
            BatchError: it is no message of this cut.
        """
        if message.shape != (self.words,) or message.dtype != torch.float32:
            raise BatchError(
                f"a message of this cut has {self.words} words of float32, got {tuple(message.shape)} of "
                f"{message.dtype}; make the cut on both ranks with the same values, and wrap the module before it in "
                "sender(...)"
            )
        return _Unpack.apply(message, self)  # type: ignore[no-any-return, no-untyped-call]

    def _packet(self, way: _Way, message: Tensor) -> Packet:
        sections = message.detach().contiguous().view(torch.uint8)[: sum(way.lengths)].split(way.lengths)
        return Packet(way.codec.spec, self.dtype, self.shape, tuple(range(len(self.shape))), tuple(sections))

    def _words(self, packet: Packet) -> Tensor:
        length = sum(section.numel() for section in packet.sections)
        padding = torch.zeros(self.words * _WORD - length, dtype=torch.uint8, device=packet.device)
        return torch.cat([*packet.sections, padding]).view(torch.float32)

    def _way_there(self) -> _Way:
        return _Way(self._forward, self._there)

    def _way_back(self, packet: Packet) -> _Way:
        return _Way(self._backward.for_gradient_of(packet), self._back)


@dataclass(frozen=True)
class _Way:
    """One direction: its codec, and the lengths of the sections that it writes."""

    codec: Codec
    lengths: list[int]


class _Pack(torch.autograd.Function):
    """Packs on the way forward; what comes back is a packed gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: CodedCut) -> Tensor:
        packet = cut._way_there().codec.encode(x.contiguous())
        ctx.cut, ctx.back = cut, cut._way_back(packet)
        return cut._words(packet)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.back.codec.decode(ctx.cut._packet(ctx.back, grads[0])), None


class _Unpack(torch.autograd.Function):
    """Unpacks on the way forward; what goes back is packed."""

    @staticmethod
    def forward(ctx: Any, message: Tensor, cut: CodedCut) -> Tensor:
        way = cut._way_there()
        packet = cut._packet(way, message)
        ctx.cut, ctx.back = cut, cut._way_back(packet)
        return way.codec.decode(packet)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.cut._words(ctx.back.codec.encode(grads[0].contiguous())), None


class _Sender(nn.Module):
    def __init__(self, module: nn.Module, cut: CodedCut) -> None:
        super().__init__()
        self.module, self._cut = module, cut

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        return self._cut.pack(self.module(*inputs, **named))


class _Receiver(nn.Module):
    def __init__(self, module: nn.Module, cut: CodedCut) -> None:
        super().__init__()
        self.module, self._cut = module, cut

    def forward(self, message: Tensor, **named: Any) -> Any:
        return self.module(self._cut.unpack(message), **named)


def _usable(choice: str | Codec | None) -> Codec:
    made = codec("none" if choice is None else choice)
    if not made.fixed_rate:
        raise CodecError(
            f"packets of {made.spec!r} have a length of their own each, and stages send tensors of one shape; use a "
            "codec of fixed rate, without |zstd"
        )
    return made


def _lengths(packet: Packet) -> list[int]:
    return [section.numel() for section in packet.sections]
