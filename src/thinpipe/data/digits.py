"""Scikit-learn's handwritten digits: 1,797 real images of 8 x 8 pixels that come with the package.

Small enough for a first minute, real enough to be right or wrong about.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thinpipe.extras import need


@dataclass(frozen=True)
class Digits:
    """Images as rows x 1 x 8 x 8, in 0 to 1, and their labels; the last fifth is kept for testing.

    Args:
        train_images: images to train on.
        train_labels: their digits.
        test_images: images to test on.
        test_labels: their digits.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_digits() -> Digits:
    """Loads the digits, always in the same order and split.

    Raises:
        MissingPackageError: scikit-learn is not installed.
    """
    need("the digits", "sklearn")
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(images).float().reshape(-1, 1, 8, 8)[order] / 16
    labels = torch.from_numpy(labels).long()[order]
    tested = len(labels) // 5
    return Digits(images[:-tested], labels[:-tested], images[-tested:], labels[-tested:])
