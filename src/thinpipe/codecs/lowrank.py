"""Matrices by two thin factors: ``power:R/P`` by power iteration from the last tensor's factor, ``svd:R`` anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import frexp, isfinite, ldexp
from typing import Any

import torch
from torch import Tensor

from thinpipe.codecs.coder import Coder, Wrapper, restored, working_dtype
from thinpipe.codecs.orthonormal import orthonormal

_OVERSAMPLING = 8
_PASSES = 2


class LowRank(Wrapper):
    """Sends two factors whose product comes nearest to each matrix of a tensor.

    Args:
        rank: the columns of each factor, at most the lesser side of a matrix.
        inner: for the factors.
    """

    shaped = True
    name = ""

    def __init__(self, rank: int, inner: Coder) -> None:
        super().__init__(inner)
        self.rank = rank

    def __str__(self) -> str:
        return self.chained(f"{self.name}:{self.rank}")

    def matrices(self, shape: torch.Size) -> tuple[int, int, int]:
        """Tells how a tensor is seen: how many matrices, of how many rows and columns."""
        raise NotImplementedError

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Finds the factors of matrices, ``left @ right.mT``."""
        raise NotImplementedError

    def pack(self, x: Tensor) -> list[Tensor]:
        matrices = x.to(working_dtype(x.dtype)).reshape(self.matrices(x.shape))
        peak = float(matrices.abs().amax())
        if isfinite(peak):
            # A power of two rounds nothing; without it the squares of great and small values leave their type's range.
            unit = ldexp(1.0, frexp(peak)[1]) if peak else 1.0
            left, right = self.factors(matrices / unit)
            right = right * unit
        else:
            left, right = (matrices.new_full(shape, torch.nan) for shape in self._shapes(x.shape))
        return [*self.inner.pack(left.contiguous()), *self.inner.pack(right.contiguous())]

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        work = working_dtype(dtype)
        half = len(sections) // 2
        left, right = (
            self.inner.unpack(part, size, work)
            for part, size in zip((sections[:half], sections[half:]), self._shapes(shape), strict=True)
        )
        return restored((left @ right.mT).reshape(shape), shape, dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        return [size for part in self._shapes(shape) for size in self.inner.sizes(part, working_dtype(dtype))]

    def _shapes(self, shape: torch.Size) -> tuple[torch.Size, torch.Size]:
        count, rows, columns = self.matrices(shape)
        rank = min(self.rank, rows, columns)
        return torch.Size([count, rows, rank]), torch.Size([count, columns, rank])


class Power(LowRank):
    """Power iteration, begun from the factor of the tensor before.

    A tensor [B, C, H, W] is B matrices of C x HW, and [B, S, F] is B of S x F. Whoever decodes multiplies the factors,
    however many passes they took.

    Args:
        rank: the columns of each factor, at most the lesser side of a matrix.
        inner: for the factors.
        passes: over each tensor; more come nearer to the best factors, and each takes as long as the first (default:
            one, but three over a tensor that has none before it).
    """

    name = "power"

    def __init__(self, rank: int, inner: Coder, *, passes: int | None = None) -> None:
        super().__init__(rank, inner)
        self._passes = passes
        self._warm: Tensor | None = None

    def __str__(self) -> str:
        return self.chained(f"power:{self.rank}{'' if self._passes is None else f'/{self._passes}'}")

    def matrices(self, shape: torch.Size) -> tuple[int, int, int]:
        if len(shape) < 3:
            return (1, shape[0] if len(shape) == 2 else 1, shape[-1] if shape else 1)
        return (shape[0], shape[1], shape[2:].numel())

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        passes, start = 1, self._start(x)
        if start is None:
            rank = min(self.rank, *x.shape[1:])
            passes, start = 1 + _PASSES, _random(x, rank)
        for _ in range(passes if self._passes is None else self._passes):
            left = orthonormal(x @ start)
            start = x.mT @ left
        self._warm = start
        return left, start

    def _start(self, x: Tensor) -> Tensor | None:
        """Finds a factor to begin with in the last tensor's; a batch of another size takes its rows round and round."""
        warm = self._warm
        if warm is None or warm.shape[1:] != (x.shape[2], min(self.rank, *x.shape[1:])):
            return None
        warm = warm.to(x)
        return warm[torch.arange(x.shape[0], device=x.device) % warm.shape[0]]

    def own_state(self) -> dict[str, Any]:
        return {} if self._warm is None else {"warm": self._warm}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        self._warm = state.get("warm")


class SVD(LowRank):
    """Truncated singular values of each trailing matrix: H x W of every channel, or S x F of every sample.

    Matrices too large to be decomposed whole are first projected on the range that random directions find in them.
    """

    name = "svd"

    def matrices(self, shape: torch.Size) -> tuple[int, int, int]:
        if len(shape) < 2:
            return (1, 1, shape.numel())
        return (shape[:-2].numel(), shape[-2], shape[-1])

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rank = min(self.rank, *x.shape[1:])
        wide = rank + _OVERSAMPLING
        if wide < min(x.shape[1:]):
            basis = orthonormal(x @ _random(x, wide))
            for _ in range(_PASSES):
                basis = orthonormal(x @ orthonormal(x.mT @ basis))
            u, s, v = torch.linalg.svd((basis.mT @ x).double(), full_matrices=False)
            u = basis.double() @ u
        else:
            u, s, v = torch.linalg.svd(x.double(), full_matrices=False)
        return (u[..., :rank] * s[..., None, :rank]).to(x), v[..., :rank, :].mT.to(x)


def _random(x: Tensor, columns: int) -> Tensor:
    """Draws directions, the same in every run and for every matrix, without touching anybody's generator."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn((x.shape[2], columns), generator=generator, dtype=torch.float64)
    return directions.to(x).expand(x.shape[0], -1, -1)
