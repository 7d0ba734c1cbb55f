"""Reads CIFAR-10 from its official binary files: a label and 3 x 32 x 32 bytes an image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

_IMAGE = 3 * 32 * 32
_MEAN, _DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Pictures:
    """Images with their labels, to train and to test on.

    Args:
        name: of the data, for people.
        train_images: rows x channels x height x width.
        train_labels: their classes.
        test_images: the same, to test on.
        test_labels: their classes.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def find_cifar10(folder: Path) -> Path | None:
    """Finds the folder of the binary files, the one given or ``cifar-10-batches-bin`` in it; None if there is none."""
    places = (folder, folder / "cifar-10-batches-bin")
    return next((place for place in places if (place / "test_batch.bin").exists()), None)


def load_cifar10(folder: Path) -> Pictures:
    """Reads all training files that are there, and the test file.

    Raises:
        ValueError: there is no training file, or one is no multiple of an image.
    """
    files = sorted(folder.glob("data_batch_*.bin"))
    if not files:
        raise ValueError(f"{folder} has test_batch.bin and no data_batch_1.bin; unpack all of cifar-10-binary.tar.gz")
    parts = [_read(file) for file in files]
    test_images, test_labels = _read(folder / "test_batch.bin")
    images, labels = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    return Pictures("CIFAR-10", images, labels, test_images, test_labels)


def _read(file: Path) -> tuple[Tensor, Tensor]:
    content = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)
    if len(content) == 0 or len(content) % (_IMAGE + 1):
        raise ValueError(f"{file} has {len(content)} bytes, which is no multiple of {_IMAGE + 1}; fetch it again")
    records = content.view(-1, _IMAGE + 1)
    images = records[:, 1:].reshape(-1, 3, 32, 32).float() / 255
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (_MEAN, _DEVIATION))
    return (images - mean) / deviation, records[:, 0].long()
