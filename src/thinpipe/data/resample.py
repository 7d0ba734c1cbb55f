"""Resizing as two small matrices for each image: one for its rows and one for its columns.

::

    crop of an image            down          image          across^T
                             size x height  height x width  width x size

    an enlarged row    [1    .    .  ]      every output pixel is a mean of the two nearest pixels ...
                       [.75  .25  .  ]
                       [.25  .75  .  ]
    a reduced row      [.25 .5 .25  . ]     ... or, where there are fewer of them, of all that it covers

That is bilinear resizing with antialiasing, what Pillow and torchvision do by default. Crop, flip and resize are one
product of matrices, which processors of every kind are best at. Where TF32 is allowed for products in float32 (it is
not by default), a GPU rounds their factors to 11 bits: a part of a 255th.
"""

from __future__ import annotations

import torch
from torch import Tensor


def matrices(begin: Tensor, length: Tensor, *, pixels: int, size: int, reverse: Tensor | None = None) -> Tensor:
    """Makes the matrix of one axis for each image, images x size x pixels.

    Args:
        begin: for each image, the first pixel of its crop.
        length: for each image, the pixels of its crop.
        pixels: of the whole axis.
        size: pixels afterwards.
        reverse: for each image, whether the axis is turned round. Default: ``None``, none is.
    """
    first, count = (each.to(torch.float32).unsqueeze(1) for each in (begin, length))
    place = torch.arange(size, device=begin.device) + 0.5
    if reverse is not None:
        place = torch.where(reverse.unsqueeze(1), size - place, place)
    scale = count / size
    centre = (first + place * scale).unsqueeze(2)
    pixel = torch.arange(pixels, device=begin.device) + 0.5
    # Each pixel counts the less the farther it is; not at all from as far as the output's pixels, or its own, apart.
    weights = (1 - (pixel - centre).abs_() / scale.clamp(min=1).unsqueeze(2)).clamp_(min=0)
    # A crop's neighbours are not part of it: its border is repeated instead, which is what the division does.
    weights *= ((pixel >= first) & (pixel < first + count)).unsqueeze(1)
    return weights.div_(weights.sum(2, keepdim=True))


def resampled(images: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Applies the matrices of both axes.

    Args:
        images: floating point, rows x channels x height x width.
        down: rows x size x height, or one matrix for all rows.
        across: rows x size x width, or one matrix for all rows.
    """
    rows, channels, height, _ = images.shape
    # Autocast would take products of matrices for those of a model, and round pixels to 8 bits.
    with torch.autocast(images.device.type, enabled=False):
        wide = images.flatten(1, 2) @ across.transpose(-1, -2)
        return down.unsqueeze(-3) @ wide.view(rows, channels, height, across.shape[-2])
