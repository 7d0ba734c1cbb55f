"""``ef(...)``: what a codec lost of one tensor is added to the next (error feedback)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, Wrapper, working_dtype

_SHAPES = 4
"""The last batch of an epoch has another shape than the rest; more than a few are not worth their memory."""


class ErrorFeedback(Wrapper):
    """Remembers the error of the last tensor of each shape, so that errors do not add up over time but cancel.

    Of use where the tensors that follow each other are alike, such as the gradient of the same samples in every epoch.

    Args:
        inner: whose error it is.
    """

    def __init__(self, inner: Coder) -> None:
        super().__init__(inner)
        self.shaped = inner.shaped
        self._errors: dict[tuple[int, ...], Tensor] = {}

    def __str__(self) -> str:
        return f"ef({self.inner})"

    def pack(self, x: Tensor) -> list[Tensor]:
        shape = tuple(x.shape)
        wanted = x.to(working_dtype(x.dtype))
        if shape in self._errors:
            wanted = wanted + self._errors[shape].to(wanted)
        sections = self.inner.pack(wanted.to(x.dtype).contiguous())
        error = wanted - self.inner.unpack(sections, x.shape, x.dtype).to(wanted)
        # A value that is not finite spoils one tensor, not all that follow.
        self._errors.pop(shape, None)
        self._errors[shape] = torch.where(torch.isfinite(error), error, torch.zeros_like(error))
        while len(self._errors) > _SHAPES:
            self._errors.pop(next(iter(self._errors)))
        return sections

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return self.inner.unpack(sections, shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        return self.inner.sizes(shape, dtype)

    def own_state(self) -> dict[str, Any]:
        return {"error " + "x".join(map(str, shape)): error for shape, error in self._errors.items()}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        self._errors = {tuple(error.shape): error for error in state.values()}
