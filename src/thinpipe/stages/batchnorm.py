"""Batch normalisation that counts a batch once, however many micro-batches it was cut into.

A micro-batch is always normalised by its own statistics; what is deferred is the update of the running ones. Each
micro-batch leaves its count, mean and variance; they are merged by Chan's parallel algorithm, which loses no precision
where a sum of squares would cancel, and the running statistics move once, by the unbiased variance of the whole batch,
exactly as plain BatchNorm moves them on one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from thinpipe.errors import SplitError
from thinpipe.stages.phase import current_micro_batch, is_recomputing
from thinpipe.stages.walk import layers_in


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

    The tallies are neither parameters nor buffers, so ``state_dict`` is that of the plain layer. There is one for each
    time a micro-batch passes the layer: a layer used twice in a model moves its statistics twice a batch.
    """

    _tallies: list[Tally] | None = None
    _calls = 0
    _micro: int | None = None

    def begin(self) -> None:
        """Opens a batch: until ``commit`` or ``discard`` the running statistics stand still."""
        self._tallies, self._calls, self._micro = [], 0, None

    def discard(self) -> None:
        """Forgets a batch that failed."""
        self._tallies = None

    def commit(self) -> None:
        """Moves the running statistics by the batch; a batch that never came this way moves nothing."""
        tallies, self._tallies = self._tallies or [], None
        for tally in tallies:
            self._move(tally)

    def _move(self, tally: Tally) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        assert tally.mean is not None and tally.squares is not None
        self.num_batches_tracked.add_(1)
        # Without a momentum the average is cumulative: every batch so far weighs the same.
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(tally.mean.to(self.running_mean), factor)
        self.running_var.lerp_((tally.squares / max(tally.count - 1, 1)).to(self.running_var), factor)

    def _tally(self) -> Tally:
        """Finds the tally of this pass: the first for the first time in a micro-batch, and so on."""
        assert self._tallies is not None
        if current_micro_batch() != self._micro:
            self._micro, self._calls = current_micro_batch(), 0
        if self._calls == len(self._tallies):
            self._tallies.append(Tally())
        self._calls += 1
        return self._tallies[self._calls - 1]

    def forward(self, input: Tensor) -> Tensor:
        """Normalises by the micro-batch's own statistics, noting them the first time the micro-batch comes by."""
        counting = self._tallies is not None and not is_recomputing()
        if not self.training or not (counting or is_recomputing()):
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        mean: Tensor | None = None
        variance: Tensor | None = None
        if counting:
            # With momentum 1 the "running" statistics are those of this micro-batch: they cost nothing more to have.
            assert self.running_mean is not None and self.running_var is not None
            mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        output = functional.batch_norm(
            input, mean, variance, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps
        )
        if mean is not None and variance is not None:
            self._tally().add(input.numel() // input.size(1), mean, variance)
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
    return (layer for layer in layers_in(module) if isinstance(layer, Deferred))


@contextmanager
def one_batch(layers: Iterable[Deferred]) -> Iterator[None]:
    """Has deferred layers move their running statistics once, at the end of what is surrounded, unless that fails."""
    layers = list(layers)
    for layer in layers:
        layer.begin()
    try:
        yield
    except BaseException:
        for layer in layers:
            layer.discard()
        raise
    with torch.no_grad():
        for layer in layers:
            layer.commit()
