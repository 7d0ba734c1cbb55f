"""``topk:P``: the share P of the elements with the greatest magnitudes; all others are 0.

A value that is not finite counts as the greatest. If nothing else was sent, there may be more of them than were sent:
the others arrive as NaN then, not as 0, so that no overflow is hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, Wrapper, working
from thinpipe.codecs.indices import index_sizes, pack_indices, unpack_indices
from thinpipe.codecs.packet import Packet
from thinpipe.errors import CodecError, PacketError
from thinpipe.kernels import kernels_for


class TopK(Wrapper):
    """Sends the indices and the values, which the next coder packs. Of equal magnitudes the first are taken.

    Args:
        share: of the elements, more than 0 and at most 1; at least one is sent.
        inner: for the values.
        own: whether a gradient's elements are chosen by their own magnitude, and their indices sent, rather than those
            that were chosen of the activation (default: no).
    """

    def __init__(self, share: float, inner: Coder, *, own: bool = False) -> None:
        super().__init__(inner)
        self.share = share
        self._own = own

    def __str__(self) -> str:
        return self.chained(f"topk:{_written(self.share)}{',own' * self._own}")

    def count(self, n: int) -> int:
        """Tells how many of n elements are sent."""
        return max(1, floor(self.share * n))

    def pack(self, x: Tensor) -> list[Tensor]:
        flat = x.reshape(-1)
        indices = self._indices(flat)
        return [*pack_indices(indices, flat.numel()), *self.inner.pack(flat[indices])]

    def _indices(self, flat: Tensor) -> Tensor:
        n, k = flat.numel(), self.count(flat.numel())
        magnitude = working(flat).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
        least = kernels_for(flat.device, magnitude.dtype).order_statistics(magnitude, [n - k])
        kept = magnitude >= least
        if int(kept.sum()) > k:  # of equal magnitudes, the first
            above = magnitude > least
            level = kept & ~above
            kept = above | (level & (level.cumsum(0) <= k - above.sum()))
        return kept.nonzero().view(-1)

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        n = shape.numel()
        k = self.count(n)
        indices = unpack_indices(list(sections[:2]), k, n)
        return scattered(indices, self.inner.unpack(sections[2:], torch.Size([k]), dtype), shape)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        k = self.count(shape.numel()) if shape.numel() else 0
        return [*self.reused_sizes(shape), *self.inner.sizes(torch.Size([k]), dtype)]

    def reused_sizes(self, shape: torch.Size) -> list[int]:
        n = shape.numel()
        return index_sizes(self.count(n) if n else 0, n)

    def for_gradient_of(self, packet: Packet) -> Coder:
        """Takes the elements that the packet chose, if it chose the same share and left their indices as they are."""
        stages = packet.spec.split("|")
        same = stages[0] == f"topk:{_written(self.share)}" and stages[-1] != "zstd" and packet.dtype.is_floating_point
        if self._own or not same or not packet.shape.numel():
            return self
        return Masked(
            list(packet.sections[:2]), self.count(packet.shape.numel()), packet.shape, packet.order, self.inner
        )


class Masked(Wrapper):
    """The elements of a gradient at indices that both sides know from its activation; only values travel.

    Args:
        indices: the activation's two sections of indices.
        count: how many there are.
        shape: of the activation, and so of its gradient.
        order: the activation's memory order, which the indices count in.
        inner: for the values.
    """

    shaped = True

    def __init__(
        self, indices: list[Tensor], count: int, shape: torch.Size, order: tuple[int, ...], inner: Coder
    ) -> None:
        super().__init__(inner)
        self._sections = indices
        self._count = count
        self._shape = shape
        self._order = order

    def __str__(self) -> str:
        return self.chained("mask")

    def pack(self, x: Tensor) -> list[Tensor]:
        if x.shape != self._shape:
            raise CodecError(f"a gradient of shape {tuple(x.shape)} for an activation of {tuple(self._shape)}")
        flat = x.permute(self._order).reshape(-1)
        indices = self._indices(flat.device)
        values = flat[indices]
        if bool(kernels_for(flat.device, flat.dtype).extent(working(flat))[0].isnan()):
            others = flat.index_fill(0, indices, 0.0)
            if not bool(_finite(others).all()):
                values = torch.full_like(values, torch.nan)  # what is not sent must not arrive as 0
        return self.inner.pack(values)

    def _indices(self, device: torch.device) -> Tensor:
        """Finds the indices where the gradient is, which may be another device than the activation came from."""
        return unpack_indices([section.to(device) for section in self._sections], self._count, self._shape.numel())

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        # The indices are as long as the activation's shape wants: any other would read past their end.
        if shape != self._shape:
            raise PacketError(f"a gradient of shape {tuple(shape)} for an activation of {tuple(self._shape)}")
        values = self.inner.unpack(sections, torch.Size([self._count]), dtype)
        indices = self._indices(values.device)
        dense = scattered(indices, values, torch.Size(shape[dim] for dim in self._order))
        return dense.permute(sorted(range(len(shape)), key=self._order.__getitem__))

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        return self.inner.sizes(torch.Size([self._count]), dtype)


def _written(share: float) -> str:
    """Writes a share so that it is read as the same number, in few digits where those do."""
    short = f"{share:g}"
    return short if float(short) == share else repr(share)


def _finite(values: Tensor) -> Tensor:
    return torch.isfinite(working(values))


def scattered(indices: Tensor, values: Tensor, shape: torch.Size) -> Tensor:
    """Puts values at their indices, and 0 everywhere else; or NaN, if none of the values is finite."""
    # Nearly always the first one is finite, and nobody has to look at the others.
    lost = not (bool(_finite(values[:1]).all()) or bool(_finite(values).any()))
    flat = values.new_full((shape.numel(),), torch.nan) if lost else values.new_zeros(shape.numel())
    flat[indices] = values
    return flat.view(shape)
