"""One set of a bottleneck for texts and vectors: a matrix that leaves a few numbers, and one that makes many of them.

::

    [n, 128, 768]    50      [n, 128, 50]    50      [n, 128, 768]        over the features of every token
    [n, 128, 768]    s64     [n, 64, 768]    s64     [n, 128, 768]        over the tokens of a sequence
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinpipe.bottleneck.basis import starting
from thinpipe.bottleneck.decay import RankDecay
from thinpipe.bottleneck.error import BottleneckError
from thinpipe.bottleneck.spec import LinearSet

_SEQUENCE = 2
"""Dimensions of a row that has tokens, each with features."""


def narrowed(spec: LinearSet, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Tells what a matrix leaves of a row.

    Raises:
        BottleneckError: it cannot be applied, or leaves nothing out.
    """
    sizes = " x ".join(map(str, shape)) or "single numbers"
    if spec.over == "sequence" and len(shape) != _SEQUENCE:
        raise BottleneckError(f"linear:{spec} needs rows of tokens x features, got {sizes}; use linear:{spec.rank}")
    if not 1 <= len(shape) <= _SEQUENCE:
        raise BottleneckError(f"linear:{spec} needs rows of features, or of tokens x features, got {sizes}; use conv")
    axis = axis_of(spec, shape)
    if spec.rank > shape[axis]:
        what = "tokens" if spec.over == "sequence" else "features"
        raise BottleneckError(f"linear:{spec} leaves no less than the {shape[axis]} {what} of a row; use a lower rank")
    return tuple(spec.rank if k == axis else size for k, size in enumerate(shape))


def axis_of(spec: LinearSet, shape: tuple[int, ...]) -> int:
    """Tells which dimension of a row a set makes small."""
    return 0 if spec.over == "sequence" else len(shape) - 1


class Ranked(nn.Module):
    """One of the two matrices: it has rows (or columns) for the full rank and uses as many as the decay leaves.

    The optimizer goes on having the whole matrix, so that its state fits at any rank. The steps that were done are
    saved with the weights: whoever goes on from them, or goes back to them, has the rank of that time.

    Args:
        spec: its sizes.
        shape: of a row on the model's side.
        seed: of its first weights, the same at the sender and the receiver; at full rank both begin as the identity.
        dtype: of its weights.
        decay: how the rank shrinks (default: not at all).
        which: the place of the set in the bottleneck (default: the first).
    """

    weight: nn.Parameter
    bias: nn.Parameter
    steps: Tensor

    def __init__(
        self,
        spec: LinearSet,
        shape: tuple[int, ...],
        seed: int,
        dtype: torch.dtype,
        *,
        decay: RankDecay | None = None,
        which: int = 0,
    ) -> None:
        super().__init__()
        self.spec, self.size, self.decay, self._which = spec, shape[axis_of(spec, shape)], decay, which
        if decay is not None:
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        weight, bias = self._sizes()
        self.weight = nn.Parameter(torch.empty(weight, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(bias, dtype=dtype))
        self.begin(starting(spec.rank, self.size, 1, seed), torch.zeros(self.size, dtype=torch.float64))

    @property
    def rank(self) -> int:
        """The rank by now."""
        return self.spec.rank if self.decay is None else self.decay.rank(self.spec.rank, int(self.steps), self._which)

    def count(self) -> None:
        """Counts a training step."""
        if self.decay is not None:
            self.steps.add_(1)

    def penalise(self) -> None:
        """Adds the gradient of the L1 penalty on what the next decay drops; to be called before a training step."""
        if self.decay is None or not self.decay.penalty or self.weight.grad is None:
            return
        after = self.decay.next_rank(self.spec.rank, int(self.steps), self._which)
        doomed, grad = (self._used(x)[after : self.rank] for x in (self.weight.detach(), self.weight.grad))
        grad.add_(doomed.sign(), alpha=self.decay.penalty)

    def _sizes(self) -> tuple[tuple[int, int], int]:
        """Tells the sizes of the weight and the bias."""
        raise NotImplementedError

    def begin(self, basis: Tensor, centre: Tensor) -> None:
        """Sets the weights from vectors and a centre."""
        raise NotImplementedError

    def _used(self, weight: Tensor) -> Tensor:
        """Views a matrix with a row for each number that crosses the wire."""
        raise NotImplementedError

    def _over_axis(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.spec.over == "features":
            return functional.linear(x, weight, bias)
        return functional.linear(x.transpose(-1, -2), weight, bias).transpose(-1, -2)


class LinearNarrow(Ranked):
    """The sender's matrix."""

    def _sizes(self) -> tuple[tuple[int, int], int]:
        return (self.spec.rank, self.size), self.spec.rank

    def forward(self, x: Tensor) -> Tensor:
        """Makes rows small."""
        rank = self.rank
        return self._over_axis(x, self.weight[:rank], self.bias[:rank])

    @property
    def axis(self) -> int:
        """The dimension with a mean for each of its indices."""
        return -1 if self.spec.over == "features" else -2

    def vectors(self, x: Tensor) -> Tensor:
        """Lists the vectors that the matrix is multiplied with."""
        return (x if self.spec.over == "features" else x.transpose(-1, -2)).reshape(-1, self.size)

    def centre(self, mean: Tensor) -> Tensor:
        """Takes the mean as it is: the receiver can add it."""
        return mean

    def begin(self, basis: Tensor, centre: Tensor) -> None:
        """Sets the weights: each number is what a vector, but for the centre, is along one of a basis."""
        with torch.no_grad():
            self.weight.copy_(basis)
            self.bias.copy_(-basis @ centre)

    def _used(self, weight: Tensor) -> Tensor:
        return weight

    def extra_repr(self) -> str:
        """Shows the sizes."""
        return f"{self.size} -> {self.spec}" + ("" if self.decay is None else f", {self.decay}")


class LinearWiden(Ranked):
    """The receiver's matrix."""

    def _sizes(self) -> tuple[tuple[int, int], int]:
        return (self.size, self.spec.rank), self.size

    def forward(self, x: Tensor) -> Tensor:
        """Makes rows as large as they were."""
        rank = self.rank
        came = x.shape[-1 if self.spec.over == "features" else -2]
        if came != rank:
            raise BottleneckError(
                f"linear:{self.spec} is at rank {rank} here, and {came} came from the sender; both sides count the "
                "same training steps, by decay(optimizer, module)"
            )
        return self._over_axis(x, self.weight[:, :rank], self.bias)

    def begin(self, basis: Tensor, centre: Tensor) -> None:
        """Sets the weights: a vector is the centre, and each one of a basis times a number."""
        with torch.no_grad():
            self.weight.copy_(basis.T)
            self.bias.copy_(centre)

    def _used(self, weight: Tensor) -> Tensor:
        return weight.T

    def extra_repr(self) -> str:
        """Shows the sizes."""
        return f"{self.spec} -> {self.size}" + ("" if self.decay is None else f", {self.decay}")
