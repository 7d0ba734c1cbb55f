"""Augmentation of whole batches, on the device that trains: bytes go in, and a model's inputs come out.

A batch is a function of (seed, step, images): a run that is resumed, or another device, sees the same pixels. A
replica or a micro-batch that has only some rows of a batch says which, and gets what one device would.

What is drawn is what the usual transforms draw (``RandomResizedCrop``, ``RandomHorizontalFlip``, ``RandomCrop``).
Their pixels are rounded to bytes between two steps, and these are not: they differ by half a 255th at most, or one
where an image is resized both ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from thinpipe.data import crops
from thinpipe.data.resample import matrices, resampled
from thinpipe.errors import BatchError


@dataclass(frozen=True, kw_only=True)
class Normalise:
    """How bytes become a model's inputs: ``(pixel / 255 - mean) / std``, channel by channel.

    Args:
        mean: of each channel, from 0 to 1.
        std: of each channel.
        dtype: of the inputs; all computing is in float32 before that. Default: ``torch.float32``.
        channels_last: whether channels lie beside each other in memory, which convolutions of a GPU are faster with.
            Default: ``False``.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise ValueError(f"mean and std have a number for each channel, std above 0; got {self.mean}, {self.std}")

    def check(self, images: Tensor) -> None:
        """Checks that these are images.

        Raises:
            BatchError: they are not.
        """
        if images.dim() != 4 or images.dtype != torch.uint8 or images.shape[1] != len(self.mean):
            raise BatchError(
                f"augmentation takes uint8 of rows x {len(self.mean)} x height x width, "
                f"got {images.dtype} of {' x '.join(map(str, images.shape))}"
            )

    def floats(self, images: Tensor) -> Tensor:
        """Returns normalised float32 of bytes."""
        # Made here and sent: made on a GPU, they would be waited for, and with them all that it still has to do.
        numbers = 255 * torch.tensor([self.mean, self.std]).to(images.device, non_blocking=True)
        mean, std = numbers.view(2, -1, 1, 1)
        return images.to(torch.float32).sub_(mean).div_(std)

    def finished(self, images: Tensor) -> Tensor:
        """Returns the model's inputs of normalised images."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return images.to(self.dtype, memory_format=layout)


CIFAR = Normalise(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
"""The numbers that most use for CIFAR; std is the mean of the images' own."""
IMAGENET = Normalise(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""The numbers that pretrained models of ImageNet expect."""


class Augment(Protocol):
    """Makes inputs to train with of a batch of images, or of some of its rows.

    Args:
        images: uint8, rows x channels x height x width, on any device.
        seed: of the run.
        step: the number of the batch in the run.
        first: the place in its batch of the first image. Default: 0.
        rows: how many images the whole batch has. Default: ``None``, these are all.
    """

    def __call__(self, images: Tensor, *, seed: int, step: int, first: int = 0, rows: int | None = None) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """Takes a random part of each image, at a random shape, resizes it to a square, and flips every other one.

    Args:
        size: the edge of the square.
        normalise: makes inputs of bytes. Default: ``CIFAR``.
        scale: the least and the greatest part of the area. Default: 0.08 to 1.
        ratio: the least and the greatest width by height. Default: 3/4 to 4/3.
        flip: the share of images that are turned left to right. Default: 0.5.
    """

    size: int
    normalise: Normalise = CIFAR
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        ordered = 0 < self.scale[0] <= self.scale[1] <= 1 and 0 < self.ratio[0] <= self.ratio[1]
        if self.size < 1 or not ordered or not 0 <= self.flip <= 1:
            raise ValueError(f"a crop has a size from 1, a scale up to 1, ratios and a share of flips, got {self}")

    def __call__(self, images: Tensor, *, seed: int, step: int, first: int = 0, rows: int | None = None) -> Tensor:
        """Makes inputs to train with."""
        self.normalise.check(images)
        height, width = images.shape[2:]
        chosen, total = _part(images, first, rows)
        source = crops.generator(seed, step)
        boxes = crops.resized_crops(total, height, width, scale=self.scale, ratio=self.ratio, source=source)
        flipped = crops.flips(total, self.flip, source=source)
        return self.cropped(images, boxes[chosen], flipped[chosen])

    def cropped(self, images: Tensor, boxes: Tensor, flipped: Tensor) -> Tensor:
        """Takes given crops.

        Args:
            images: as in a call.
            boxes: rows x 4: top, left, height and width.
            flipped: for each row, whether it is turned round.
        """
        # One small tensor travels to the device, and not five.
        table = torch.cat([boxes, flipped[:, None].long()], 1).to(images.device, non_blocking=True)
        top, left, height, width, turned = table.unbind(1)
        down = matrices(top, height, pixels=images.shape[2], size=self.size)
        across = matrices(left, width, pixels=images.shape[3], size=self.size, reverse=turned.bool())
        # Resizing takes means, and a mean of normalised pixels is normalised: cheaper before, where images are small.
        return self.normalise.finished(resampled(self.normalise.floats(images), down, across))


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """Moves each image by a few pixels, with black where it was, and flips every other one.

    Args:
        normalise: makes inputs of bytes. Default: ``CIFAR``.
        pad: by how many pixels it moves at most, each way. Default: 4.
        flip: the share of images that are turned left to right. Default: 0.5.
    """

    normalise: Normalise = CIFAR
    pad: int = 4
    flip: float = 0.5

    def __post_init__(self) -> None:
        if self.pad < 0 or not 0 <= self.flip <= 1:
            raise ValueError(f"a crop moves by 0 pixels or more and flips a share of images, got {self}")

    def __call__(self, images: Tensor, *, seed: int, step: int, first: int = 0, rows: int | None = None) -> Tensor:
        """Makes inputs to train with."""
        self.normalise.check(images)
        chosen, total = _part(images, first, rows)
        source = crops.generator(seed, step)
        shifts = crops.shifted_crops(total, self.pad, source=source)
        flipped = crops.flips(total, self.flip, source=source)
        return self.cropped(images, shifts[chosen], flipped[chosen])

    def cropped(self, images: Tensor, shifts: Tensor, flipped: Tensor) -> Tensor:
        """Takes given crops of the padded images.

        Args:
            images: as in a call.
            shifts: rows x 2: top and left, from 0 to twice ``pad``.
            flipped: for each row, whether it is turned round.
        """
        count, channels, height, width = images.shape
        table = torch.cat([shifts, flipped[:, None].long()], 1).to(images.device, non_blocking=True)
        top, left, turned = table[:, :, None].unbind(1)
        down = top + torch.arange(height, device=images.device)
        across = torch.arange(width, device=images.device)
        across = left + torch.where(turned.bool(), width - 1 - across, across)
        padded = functional.pad(images, (self.pad,) * 4)
        # Bytes that are picked, not resampled: the pixels stay exact.
        row = torch.arange(count, device=images.device)[:, None, None, None]
        channel = torch.arange(channels, device=images.device)[:, None, None]
        picked = padded[row, channel, down[:, None, :, None], across[:, None, None, :]]
        return self.normalise.finished(self.normalise.floats(picked))


@dataclass(frozen=True, kw_only=True)
class CentreCrop:
    """Prepares images for evaluation: resizes the shorter side, and takes the square in the middle.

    Args:
        size: the edge of the square. Default: 224.
        resize: what the shorter side becomes first. Default: 256.
        normalise: makes inputs of bytes. Default: ``CIFAR``.
    """

    size: int = 224
    resize: int = 256
    normalise: Normalise = CIFAR

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.resize:
            raise ValueError(f"a crop of {self.size} pixels does not fit into images of {self.resize}")

    def __call__(self, images: Tensor) -> Tensor:
        """Makes inputs to evaluate with."""
        self.normalise.check(images)
        floats = self.normalise.floats(images)
        if self.resize == self.size and images.shape[2:] == (self.size, self.size):
            return self.normalise.finished(floats)
        shorter = min(images.shape[2:])
        down, across = (self._matrix(pixels, shorter, images.device) for pixels in images.shape[2:])
        return self.normalise.finished(resampled(floats, down, across))

    def _matrix(self, pixels: int, shorter: int, device: torch.device) -> Tensor:
        resized = self.resize * pixels // shorter
        begin, length = torch.zeros(1, device=device), torch.full((1,), pixels, device=device)
        whole = matrices(begin, length, pixels=pixels, size=resized)
        # Rounded half to even, as the usual transform rounds.
        first = round((resized - self.size) / 2)
        return whole[0, first : first + self.size]


def _part(images: Tensor, first: int, rows: int | None) -> tuple[slice, int]:
    total = first + len(images) if rows is None else rows
    if not 0 <= first <= first + len(images) <= total:
        raise BatchError(f"{len(images)} images from place {first} are no part of a batch of {total}")
    return slice(first, first + len(images)), total
