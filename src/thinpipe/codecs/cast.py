"""``fp16`` and ``bf16``: the elements in a smaller floating-point type."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, from_bytes, to_bytes


class Cast(Coder):
    """Rounds to a smaller type; what does not fit becomes an infinity there, as everywhere in torch.

    Args:
        name: of the codec.
        target: the type on the wire.
    """

    def __init__(self, name: str, target: torch.dtype) -> None:
        self._name = name
        self._target = target

    def __str__(self) -> str:
        return self._name

    def pack(self, x: Tensor) -> list[Tensor]:
        return [to_bytes(x.to(self._target))]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        values = from_bytes(sections[0], self._target)
        most = torch.finfo(dtype).max
        if most < torch.finfo(self._target).max:
            # What was rounded up beyond the type it came in must not become an infinity; what was one stays one.
            wide = values.to(torch.float32)
            values = torch.where(wide.isinf(), wide, wide.clamp(-most, most))
        return values.to(dtype).view(shape)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        return [shape.numel() * self._target.itemsize]
