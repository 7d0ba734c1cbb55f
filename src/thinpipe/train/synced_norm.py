"""BatchNorm over the rows of all ranks: data parallel training then has the numbers of one device with all rows.

::

    rank 0   rows 0 1 2 ─ sums ─┐                    ┌─ normalised by the mean and variance of rows 0 to 4
    rank 1   rows 3 4   ─ sums ─┴─ sums of all rows ─┴─ likewise; both move their running statistics alike

PyTorch's own ``SyncBatchNorm`` does the same on GPUs alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from thinpipe.errors import SplitError


class _Sum(torch.autograd.Function):
    """Adds tensors of all ranks up; a gradient of the sum is one of every rank's tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _summed(tensor, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _summed(grads[0], ctx.group), None


def _summed(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class Synced(_BatchNorm):
    """Mixed into a BatchNorm class: in training its statistics are those of the rows of all ranks."""

    group: Any  # a ProcessGroup; nn.Module has its own idea of what an attribute may be
    counts: bool = True

    def forward(self, input: Tensor) -> Tensor:
        """Normalises by the statistics of all ranks' rows; those of this rank may not count."""
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        mean, variance, count = self._statistics(x)
        self._move(mean.detach(), variance.detach(), count)
        shape = (1, -1, *[1] * (x.dim() - 2))
        scale = torch.rsqrt(variance + self.eps)
        scale = scale if self.weight is None else scale * self.weight
        shifted = (x - mean.to(x).view(shape)) * scale.to(x).view(shape)
        return (shifted if self.bias is None else shifted + self.bias.view(shape)).to(input.dtype)

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor, float]:
        """Returns mean, variance and the number of values of each channel, over all ranks."""
        dims = [dim for dim in range(x.dim()) if dim != 1]
        # In float64 one exchange is enough: a mean need not be known before squares are summed.
        sums, squares = x.sum(dims, dtype=torch.float64), x.square().sum(dims, dtype=torch.float64)
        own = torch.cat([sums, squares, sums.new_full((1,), x.numel() / x.size(1))])
        total: Tensor = _Sum.apply(own if self.counts else own * 0, self.group)  # type: ignore[no-untyped-call]
        count = float(total[-1].detach())
        sums, squares = total[:-1].chunk(2)
        mean = sums / count
        return mean, (squares / count - mean.square()).clamp_min(0), count

    @torch.no_grad()
    def _move(self, mean: Tensor, variance: Tensor, count: float) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), factor)
        self.running_var.lerp_((variance * count / max(1.0, count - 1)).to(self.running_var), factor)


class SyncedBatchNorm1d(Synced, nn.BatchNorm1d):
    """``nn.BatchNorm1d`` over the rows of all ranks."""


class SyncedBatchNorm2d(Synced, nn.BatchNorm2d):
    """``nn.BatchNorm2d`` over the rows of all ranks."""


class SyncedBatchNorm3d(Synced, nn.BatchNorm3d):
    """``nn.BatchNorm3d`` over the rows of all ranks."""


_SYNCED: dict[type[_BatchNorm], type[Synced]] = {
    nn.BatchNorm1d: SyncedBatchNorm1d,
    nn.BatchNorm2d: SyncedBatchNorm2d,
    nn.BatchNorm3d: SyncedBatchNorm3d,
}


@contextmanager
def uncounted(module: nn.Module) -> Iterator[None]:
    """Has the rows of this rank change nobody's statistics: it takes part because the others wait for it."""
    layers = [layer for layer in module.modules() if isinstance(layer, Synced)]
    for layer in layers:
        layer.counts = False
    try:
        yield
    finally:
        for layer in layers:
            layer.counts = True


def sync_batch_norm(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Makes every BatchNorm inside the module one over the rows of all ranks, in place: names and hooks stay.

    Args:
        module: the model; every rank has the same one.
        group: a process group that nobody else uses: sums of gradients are on their way at the same time.

    Raises:
        SplitError: a BatchNorm of another class, which nobody here knows how to compute.
    """
    for name, layer in module.named_modules():
        if not isinstance(layer, _BatchNorm):
            continue
        if type(layer) not in _SYNCED:
            raise SplitError(
                f"'{name}' is a {type(layer).__name__}, whose statistics cannot be those of all ranks; replace it by "
                f"one of {', '.join(kind.__name__ for kind in _SYNCED)}"
            )
        layer.__class__ = _SYNCED[type(layer)]
        cast(Synced, layer).group = group
