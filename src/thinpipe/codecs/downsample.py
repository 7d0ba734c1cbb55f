"""``downsample:F``: neighbours averaged, F x F of an image or F of a sequence; brought back by linear interpolation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from thinpipe.codecs.coder import Coder, Wrapper, working_dtype


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
        image = _as_image(x.to(working_dtype(x.dtype)))
        window = (min(self.factor, image.shape[2]), min(self.factor, image.shape[3]))
        small = functional.avg_pool2d(image, window, window, ceil_mode=True, count_include_pad=False)
        return self.inner.pack(small.to(x.dtype).contiguous())

    def unpack(self, sections: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> Tensor:
        small = self.inner.unpack(sections, self._small(shape), dtype).to(working_dtype(dtype))
        image = functional.interpolate(small, _image_shape(shape)[2:], mode="bilinear", align_corners=False)
        if len(shape) == 3:
            image = image.view(shape[0], shape[2], shape[1]).transpose(1, 2)
        return image.reshape(shape).to(dtype)

    def sizes(self, shape: torch.Size, dtype: torch.dtype) -> list[int]:
        return self.inner.sizes(self._small(shape), dtype)

    def _small(self, shape: torch.Size) -> torch.Size:
        image = _image_shape(shape)
        return torch.Size([*image[:2], -(-image[2] // self.factor), -(-image[3] // self.factor)])


def _image_shape(shape: torch.Size) -> tuple[int, int, int, int]:
    """Tells the shape of a tensor as images whose last two dimensions are averaged over."""
    if len(shape) >= 4:
        return (shape[:-3].numel(), shape[-3], shape[-2], shape[-1])
    if len(shape) == 3:
        return (shape[0], shape[2], 1, shape[1])
    return (1, shape[:-1].numel(), 1, shape[-1] if shape else 1)


def _as_image(x: Tensor) -> Tensor:
    return (x.transpose(1, 2) if x.dim() == 3 else x).reshape(_image_shape(x.shape))
