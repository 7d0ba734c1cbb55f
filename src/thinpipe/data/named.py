"""Image sets by name, in whichever layout they are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from thinpipe.data.cifar import load_cifar10, load_cifar100
from thinpipe.data.decoded import DECODE_PIXELS, Progress
from thinpipe.data.folders import load_folders
from thinpipe.data.images import MAX_DAMAGED, ImageSet
from thinpipe.data.locate import DataError, find

_CIFAR: dict[str, Callable[..., ImageSet]] = {"cifar10": load_cifar10, "cifar100": load_cifar100}
_OFFICIAL_FOOD = (75_750, 25_250)


def load_images(
    name: str,
    data_dir: Path | None = None,
    *,
    decode_pixels: int = DECODE_PIXELS,
    partial: bool = False,
    progress: Progress | None = None,
    max_damaged: float = MAX_DAMAGED,
) -> ImageSet:
    """Loads a set of images.

    Args:
        name: ``cifar10``, ``cifar100`` or ``food101``; or ``imagefolder`` for the images in ``data_dir``.
        data_dir: a folder of data sets, or the data set's own. Default: where ``thinpipe.data.locate.places`` says.
        decode_pixels: the edge that images in files are decoded to; images of CIFAR have 32. Default: 256.
        partial: whether a part of CIFAR's binary files will do. Default: ``False``.
        progress: is told how many images are decoded. Default: nobody is.
        max_damaged: the largest share of the images to train on, or to test with, that may be unreadable.
            Default: 0.01.

    Raises:
        DataError: it is not there.
        DamagedDataError: it is there and cannot be used.
        ImportError: it is in files of images, and Pillow is not installed.
    """
    if name == "imagefolder":
        if data_dir is None:
            raise DataError("imagefolder trains on your own images: give their folder, with one folder a class in it")
        return load_folders(data_dir, decode_pixels=decode_pixels, progress=progress, max_damaged=max_damaged)
    folder = find(name, data_dir)
    if name in _CIFAR and any(folder.glob("*.bin")):
        return _CIFAR[name](data_dir, partial=partial)
    if name in _CIFAR:
        # Written out as files: nothing tells whether by the official split, so it is not taken for that.
        return load_folders(folder, decode_pixels=32, progress=progress, max_damaged=max_damaged)
    if name != "food101":
        raise DataError(f"{name} has no images; cifar10, cifar100, food101 and imagefolder have")
    images = load_folders(folder, decode_pixels=decode_pixels, progress=progress, max_damaged=max_damaged)
    whole = (len(images.train_labels), len(images.test_labels)) == _OFFICIAL_FOOD
    return replace(images, official=whole and (folder / "meta" / "train.txt").is_file())
