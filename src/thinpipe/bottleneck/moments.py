"""The mean and the second moment of vectors that come in pieces; nothing is kept of them but that."""

from __future__ import annotations

import torch
from torch import Tensor

_PIECE = 1 << 22
"""Elements that are made float64 at a time."""


class Moments:
    """Sums over vectors, in float64.

    Args:
        size: of a vector.
        device: where they are.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.count = 0
        self._sum = torch.zeros(size, dtype=torch.float64, device=device)
        self._outer = torch.zeros(size, size, dtype=torch.float64, device=device)

    def add(self, vectors: Tensor) -> None:
        """Adds vectors, one a row."""
        self.count += len(vectors)
        for piece in vectors.split(max(1, _PIECE // vectors.shape[1])):
            exact = piece.double()
            self._sum += exact.sum(0)
            self._outer.addmm_(exact.T, exact)

    @property
    def mean(self) -> Tensor:
        """The mean of all vectors."""
        return self._sum / self.count

    def about(self, centre: Tensor) -> Tensor:
        """Returns the mean of the products of every two elements, less the centre's."""
        cross = torch.outer(self.mean, centre)
        return self._outer / self.count - cross - cross.T + torch.outer(centre, centre)
