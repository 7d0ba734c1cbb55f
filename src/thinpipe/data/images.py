"""A set of images in memory: bytes, with their labels, to train on and to test with."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageSet:
    """Images as rows x channels x height x width in uint8, with int64 labels.

    Args:
        train_images: images to train on. May lie in a file that is mapped into memory: take rows, not the whole.
        train_labels: their classes, from 0.
        test_images: images to test with.
        test_labels: their classes.
        classes: the names of the classes, in the order of their numbers.
        official: whether it is all of a published data set in its published split; only then may an accuracy stand
            beside a published one. Default: ``False``.
        skipped: how many files could not be read as images. Default: 0.
        skipped_first: the names of the first of them. Default: none.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    official: bool = False
    skipped: int = 0
    skipped_first: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows, tested = len(self.train_labels), len(self.test_labels)
        sides = " x ".join(str(side) for side in self.train_images.shape[2:])
        text = f"{rows} + {tested} images of {sides} pixels in {len(self.classes)} classes"
        text += "" if self.official else ", not an official set and split"
        if self.skipped:
            text += f"; {self.skipped} files are no images that can be read: {', '.join(self.skipped_first)}"
            text += ", ..." if self.skipped > len(self.skipped_first) else ""
        return text
