"""``downsample:F``: neighbours averaged, F x F of an image or F of a sequence; brought back by linear interpolation.

The gradient of what crossed so goes back the way it came, transposed: what arrives is what automatic differentiation
would have computed, and it is as small as the averages on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from thinpipe.codecs.coder import Coder, Wrapper, working_dtype
from thinpipe.codecs.packet import Packet


class Downsample(Wrapper):
    """Averages over the last two dimensions of four, the second of three, and the last of any others.

    Args:
        factor: F; the last window of a dimension is smaller if F does not divide it.
        inner: for the averages.
    """

    shaped = True

    def __init__(self, factor: int, inner: Coder) -> None:
        super().__init__(inner)
        self.factor = factor

    def __str__(self) -> str:
        return self.chained(f"downsample:{self.factor}")

    def pack(self, x: Tensor) -> list[Tensor]:
        small = self._pooled(_as_image(x.to(working_dtype(x.dtype))))
        return self.inner.pack(small.to(x.dtype).contiguous())

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        small = self.inner.unpack(sections, self._small(shape), dtype).to(working_dtype(dtype))
        return _of_image(_enlarged(small, _image_shape(shape)), shape).to(dtype)

    def _pooled(self, image: Tensor) -> Tensor:
        window = (min(self.factor, image.shape[2]), min(self.factor, image.shape[3]))
        return functional.avg_pool2d(image, window, window, ceil_mode=True, count_include_pad=False)

    def for_gradient_of(self, packet: Packet) -> Coder:
        """Makes of a gradient what automatic differentiation makes of it, if the packet has averages of as many."""
        same = packet.spec.split("|")[0] == f"downsample:{self.factor}" and packet.dtype.is_floating_point
        return Adjoint(self.factor, self.inner) if same else self

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        return self.inner.sizes(self._small(shape), dtype)

    def _small(self, shape: torch.Size) -> torch.Size:
        image = _image_shape(shape)
        return torch.Size([*image[:2], -(-image[2] // self.factor), -(-image[3] // self.factor)])


class Adjoint(Downsample):
    """The gradient of a tensor that was averaged: through the interpolation on one side, the averages on the other.

    ::

        activation   averages  ──►  small  ──►  interpolation
        gradient     averages transposed  ◄──  small  ◄──  interpolation transposed
    """

    def __str__(self) -> str:
        return self.chained(f"adjoint:{self.factor}")

    def pack(self, x: Tensor) -> list[Tensor]:
        image = _as_image(x.to(working_dtype(x.dtype)))
        small = _transposed(lambda averages: _enlarged(averages, image.shape), self._small(x.shape), image)
        return self.inner.pack(small.to(x.dtype).contiguous())

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        small = self.inner.unpack(sections, self._small(shape), dtype).to(working_dtype(dtype))
        return _of_image(_transposed(self._pooled, _image_shape(shape), small), shape).to(dtype)

    def for_gradient_of(self, packet: Packet) -> Coder:
        return self


def _enlarged(small: Tensor, shape: Sequence[int]) -> Tensor:
    return functional.interpolate(small, tuple(shape[2:]), mode="bilinear", align_corners=False)


def _transposed(linear: Callable[[Tensor], Tensor], shape: Sequence[int], gradient: Tensor) -> Tensor:
    """Applies the transpose of a linear function, which takes tensors of a shape."""
    with torch.enable_grad():
        anywhere = gradient.new_zeros(shape).requires_grad_()
        (found,) = torch.autograd.grad(linear(anywhere), anywhere, gradient)
    return found


def _image_shape(shape: torch.Size) -> tuple[int, int, int, int]:
    """Tells the shape of a tensor as images whose last two dimensions are averaged over."""
    if len(shape) >= 4:
        return (shape[:-3].numel(), shape[-3], shape[-2], shape[-1])
    if len(shape) == 3:
        return (shape[0], shape[2], 1, shape[1])
    return (1, shape[:-1].numel(), 1, shape[-1] if shape else 1)


def _as_image(x: Tensor) -> Tensor:
    return (x.transpose(1, 2) if x.dim() == 3 else x).reshape(_image_shape(x.shape))


def _of_image(image: Tensor, shape: torch.Size) -> Tensor:
    turned = image.view(shape[0], shape[2], shape[1]).transpose(1, 2).contiguous() if len(shape) == 3 else image
    return turned.reshape(shape)
