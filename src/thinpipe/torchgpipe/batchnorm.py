"""``torchgpipe.batchnorm``: one class for deferred BatchNorm of any number of dimensions.

A pipeline tells its layers when a batch begins and ends. Outside of one nobody does, so there the layer counts: the
running statistics move after every ``chunks`` micro-batches.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from thinpipe.stages.batchnorm import Deferred, defer_batch_norm, deferred_layers
from thinpipe.stages.phase import is_recomputing

__all__ = ["DeferredBatchNorm"]

M = TypeVar("M", bound=nn.Module)


class DeferredBatchNorm(Deferred):
    """BatchNorm whose running statistics move once a batch.

    Args:
        num_features: the number of channels.
        eps: keeps the division by the variance finite (default: 1e-5).
        momentum: the weight of the newest batch in the running statistics; ``None`` weighs all alike (default: 0.1).
        affine: whether to learn a scale and a shift (default: ``True``).
        chunks: how many micro-batches make a batch when no pipeline says so (default: 1).
    """

    chunks: int = 1
    _to_come: int = 0
    """How many micro-batches the open batch still lacks; 0 if a pipeline knows."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,  # noqa: FBT001, FBT002 - by position, as torchgpipe and nn.BatchNorm2d take it
        chunks: int = 1,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine)
        self.chunks = chunks

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions, got {input.dim()}")

    def begin(self) -> None:
        """Opens a batch that ``commit`` or ``discard`` will close."""
        self._to_come = 0
        super().begin()

    def forward(self, input: Tensor) -> Tensor:
        """Normalises a micro-batch by its own statistics, and closes the batch if this was the last one counted."""
        if not self.training or is_recomputing():
            return super().forward(input)
        if self._tallies is None:
            self.begin()
            self._to_come = self.chunks
        if self._to_come:
            self._calls = 0  # fed by hand, every call is the first one of a micro-batch
        output = super().forward(input)
        if self._to_come:
            self._to_come -= 1
            if not self._to_come:
                self.commit()
        return output

    @classmethod
    def convert_deferred_batch_norm(cls, module: M, chunks: int = 1) -> M:
        """Makes every BatchNorm inside the module a deferred one, in place.

        Args:
            module: the model; its layers keep their parameters, buffers, hooks and names.
            chunks: how many micro-batches make a batch when no pipeline says so (default: 1).

        Returns:
            The same module.
        """
        defer_batch_norm(module)
        for layer in deferred_layers(module):
            layer.__class__ = cls
            layer.chunks = chunks  # type: ignore[assignment]
        return module
