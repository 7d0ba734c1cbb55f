"""Batch normalisation that counts a batch once, however many micro-batches it was cut into.

A micro-batch is always normalised by its own statistics; what is deferred is the update of the running ones. Each
micro-batch leaves its count, mean and variance; they are merged by Chan's parallel algorithm, which loses no precision
where a sum of squares would cancel, and the running statistics move once, by the unbiased variance of the whole batch,
exactly as plain BatchNorm moves them on one device.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from thinpipe.errors import SplitError
from thinpipe.stages.phase import is_recomputing


class Tally:
    """The statistics of the micro-batches seen so far in one batch."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor | None = None
        self.squares: Tensor | None = None

    def add(self, count: int, mean: Tensor, variance: Tensor) -> None:
        """Merges a micro-batch of ``count`` values a channel with its mean and its unbiased variance."""
        squares = variance * (count - 1)
        if self.mean is None or self.squares is None:
            self.count, self.mean, self.squares = count, mean, squares
            return
        total = self.count + count
        delta = mean - self.mean
        self.mean = self.mean + delta * (count / total)
        self.squares = self.squares + squares + delta.square() * (self.count * count / total)
        self.count = total


class Deferred(_BatchNorm):
    """Mixed into a BatchNorm class: tallies while a pipeline runs it, and commits when the pipeline says so.

    The tally is neither a parameter nor a buffer, so ``state_dict`` is that of the plain layer.
    """

    _tally: Tally | None = None

    def begin(self) -> None:
        """Opens a batch: until ``commit`` or ``discard`` the running statistics stand still."""
        self._tally = Tally()

    def discard(self) -> None:
        """Forgets a batch that failed."""
        self._tally = None

    def commit(self) -> None:
        """Moves the running statistics by the batch, once; a batch that never came this way moves nothing."""
        tally, self._tally = self._tally, None
        if tally is None or tally.mean is None or tally.squares is None:
            return
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        # Without a momentum the average is cumulative: every batch so far weighs the same.
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(tally.mean.to(self.running_mean), factor)
        self.running_var.lerp_((tally.squares / max(tally.count - 1, 1)).to(self.running_var), factor)

    def forward(self, input: Tensor) -> Tensor:
        """Normalises by the micro-batch's own statistics, noting them the first time the micro-batch comes by."""
        tally = self._tally
        if not self.training or (tally is None and not is_recomputing()):
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        mean: Tensor | None = None
        variance: Tensor | None = None
        if tally is not None and not is_recomputing():
            # With momentum 1 the "running" statistics are those of this micro-batch: they cost nothing more to have.
            assert self.running_mean is not None and self.running_var is not None
            mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        output = functional.batch_norm(
            input, mean, variance, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps
        )
        if tally is not None and mean is not None and variance is not None:
            tally.add(input.numel() // input.size(1), mean, variance)
        return output


class DeferredBatchNorm1d(Deferred, nn.BatchNorm1d):
    """``nn.BatchNorm1d`` with deferred statistics."""


class DeferredBatchNorm2d(Deferred, nn.BatchNorm2d):
    """``nn.BatchNorm2d`` with deferred statistics."""


class DeferredBatchNorm3d(Deferred, nn.BatchNorm3d):
    """``nn.BatchNorm3d`` with deferred statistics."""


_DEFERRED: dict[type[_BatchNorm], type[_BatchNorm]] = {
    nn.BatchNorm1d: DeferredBatchNorm1d,
    nn.BatchNorm2d: DeferredBatchNorm2d,
    nn.BatchNorm3d: DeferredBatchNorm3d,
}


def defer_batch_norm(module: nn.Module) -> None:
    """Makes every BatchNorm inside the module a deferred one, in place: the layers, their hooks and names stay.

    Raises:
        SplitError: a BatchNorm of another class, whose statistics nobody here knows how to defer.
    """
    for name, layer in module.named_modules():
        if not isinstance(layer, _BatchNorm) or isinstance(layer, Deferred) or not layer.track_running_stats:
            continue
        if type(layer) not in _DEFERRED:
            known = ", ".join(cls.__name__ for cls in _DEFERRED)
            raise SplitError(
                f"cannot defer the statistics of '{name}', a {type(layer).__name__}; only {known} can be deferred: "
                "replace the layer, or leave deferred_batch_norm=False"
            )
        layer.__class__ = _DEFERRED[type(layer)]


def deferred_layers(module: nn.Module) -> Iterator[Deferred]:
    """Finds the deferred layers inside a module."""
    return (layer for layer in module.modules() if isinstance(layer, Deferred))
