"""One set of a bottleneck for images: a convolution, and the transposed one that undoes it.

::

    112 x 112     k3 s3      37 x 37      k3 s3 transposed     111 x 111     the edges once more    112 x 112
    sender  ─────────────►   wire   ────────────────────────────────────────────────────────────►   receiver

No patch reaches the last row and column: what a stride leaves over there is filled with what is next to it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinpipe.bottleneck.basis import starting
from thinpipe.bottleneck.error import BottleneckError
from thinpipe.bottleneck.spec import ConvSet


def narrowed(spec: ConvSet, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Tells what a convolution leaves of a row.

    Raises:
        BottleneckError: it cannot be applied, or leaves nothing out.
    """
    if len(shape) != 3:
        raise BottleneckError(f"conv:{spec} needs rows of channels x height x width, got {_times(shape)}; use linear")
    channels, height, width = shape
    if spec.kernel > min(height, width):
        raise BottleneckError(
            f"conv:{spec} does not fit maps of {height} x {width}; use a kernel of at most {min(height, width)}"
        )
    most = channels * _edge(spec) ** 2
    if spec.channels > most:
        raise BottleneckError(
            f"conv:{spec} makes {spec.channels} numbers of the {most} of a patch of {channels} channels; use at most "
            f"{most}"
        )
    return spec.channels, *((size - spec.kernel) // spec.stride + 1 for size in (height, width))


def _edge(spec: ConvSet) -> int:
    """Tells the edge of the patches that do not overlap: all of what the first weights keep."""
    return min(spec.kernel, spec.stride)


class ConvNarrow(nn.Module):
    """The sender's convolution.

    Args:
        spec: its sizes.
        shape: of a row that it gets.
        seed: of its first weights.
        dtype: of its weights.
    """

    axis = 1
    """The dimension with a mean for each of its indices."""

    def __init__(self, spec: ConvSet, shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.spec = spec
        self.weight, self.bias = _parameters(spec, shape[0], spec.channels, dtype)
        start = starting(spec.channels, shape[0], _edge(spec), seed)
        self.begin(start, torch.zeros(start.shape[1], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Makes maps small."""
        return functional.conv2d(x, self.weight, self.bias, self.spec.stride)

    def vectors(self, x: Tensor) -> Tensor:
        """Lists the patches that do not overlap, one a row: what the convolution turns into a pixel."""
        edge, stride = _edge(self.spec), self.spec.stride
        offset = (self.spec.kernel - edge) // 2
        # Only as far as the kernel reaches, which may be wider than a patch.
        rows, columns = ((size - self.spec.kernel) // stride * stride + edge for size in x.shape[-2:])
        patches = x[..., offset : offset + rows, offset : offset + columns].unfold(2, edge, stride)
        return patches.unfold(3, edge, stride).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2)

    def centre(self, mean: Tensor) -> Tensor:
        """Makes of the mean of all patches one that the receiver can add: each channel has but one number for it."""
        patch: Tensor = mean.reshape(self.weight.shape[1], -1)
        return patch.mean(1, keepdim=True).expand_as(patch).flatten()

    def begin(self, basis: Tensor, centre: Tensor) -> None:
        """Sets the weights: each pixel is what a patch, but for the centre, is along the vectors of a basis."""
        _fill_kernels(self.weight, basis, _edge(self.spec))
        with torch.no_grad():
            self.bias.copy_(-basis @ centre)

    def extra_repr(self) -> str:
        """Shows the sizes."""
        return f"{self.weight.shape[1]} -> {self.spec}"


class ConvWiden(nn.Module):
    """The receiver's transposed convolution.

    Args:
        spec: the sizes of the convolution that it undoes.
        shape: of a row that the sender's got, and this gives.
        seed: of its first weights, the sender's.
        dtype: of its weights.
    """

    def __init__(self, spec: ConvSet, shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.spec = spec
        # A convolution of single pixels leaves any size as it is.
        self._size = None if (spec.kernel, spec.stride) == (1, 1) else (shape[1], shape[2])
        self.weight, self.bias = _parameters(spec, shape[0], shape[0], dtype)
        start = starting(spec.channels, shape[0], _edge(spec), seed)
        self.begin(start, torch.zeros(start.shape[1], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Makes maps as large as they were."""
        wide = functional.conv_transpose2d(x, self.weight, self.bias, self.spec.stride)
        return wide if self._size is None else _filled(_filled(wide, 2, self._size[0]), 3, self._size[1])

    def begin(self, basis: Tensor, centre: Tensor) -> None:
        """Sets the weights: a patch is the centre, and each vector of a basis times a pixel."""
        _fill_kernels(self.weight, basis, _edge(self.spec))
        with torch.no_grad():
            self.bias.copy_(centre.reshape(self.weight.shape[1], -1).mean(1))

    def extra_repr(self) -> str:
        """Shows the sizes."""
        return f"{self.spec} -> {self.weight.shape[1]}"


def _parameters(spec: ConvSet, channels: int, biases: int, dtype: torch.dtype) -> tuple[nn.Parameter, nn.Parameter]:
    weight = torch.empty(spec.channels, channels, spec.kernel, spec.kernel, dtype=dtype)
    return nn.Parameter(weight), nn.Parameter(torch.empty(biases, dtype=dtype))


def _fill_kernels(weight: nn.Parameter, basis: Tensor, edge: int) -> None:
    """Puts vectors of a patch in the middle of the kernels, whose rims overlap with other patches and begin as 0."""
    offset = (weight.shape[-1] - edge) // 2
    with torch.no_grad():
        weight.zero_()
        inner = weight[..., offset : offset + edge, offset : offset + edge]
        inner.copy_(basis.reshape(inner.shape))


def _filled(x: Tensor, dim: int, size: int) -> Tensor:
    """Repeats the last slice until there are enough. Not by padding, whose gradient is not deterministic on a GPU."""
    lacking = size - x.shape[dim]
    if not lacking:
        return x
    last = x.narrow(dim, x.shape[dim] - 1, 1)
    return torch.cat([x, *[last] * lacking], dim)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "single numbers"
