"""Folders of images, one folder a class, and which of them are to train on and which to test with.

::

    images/CLASS/*.jpg + meta/{train,test}.txt   Food-101's own layout, with its official split
    train/CLASS/* + test/CLASS/*                 or val, valid, validation
    CLASS/*                                      split by a hash of each name: no list to keep, and a new image
                                                 never moves an old one to the other side
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from thinpipe.data.decoded import DECODE_PIXELS, Decoded, Progress, decoded
from thinpipe.data.images import MAX_DAMAGED, ImageSet, names_text, verify_share
from thinpipe.data.locate import DamagedDataError, DataError

ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""The endings of file names, in small letters, that are taken for images."""

_TESTED = ("test", "val", "valid", "validation")


@dataclass(frozen=True)
class Listed:
    """An image that was found.

    Args:
        file: where it is.
        label: the number of its class.
    """

    file: Path
    label: int


@dataclass(frozen=True)
class Listing:
    """All images of a folder.

    Args:
        classes: the names of the classes, sorted.
        train: images to train on.
        test: images to test with.
        others: files beside them that are not taken for images. Default: none.
    """

    classes: tuple[str, ...]
    train: tuple[Listed, ...]
    test: tuple[Listed, ...]
    others: tuple[Path, ...] = ()


def list_images(root: Path, *, test_share: float = 0.2) -> Listing:
    """Finds the images of a folder, whichever layout it has; always in the same order.

    Args:
        root: the folder.
        test_share: the part of the images, from 0 to 1, that a folder without a split gives to the test. Default: 0.2.

    Raises:
        DataError: there is no such folder, or no images to train on or to test with.
        DamagedDataError: the layout contradicts itself, or a folder in it cannot be listed.
    """
    if not root.is_dir():
        raise DataError(f"{root} is no folder; it should hold a folder of images for each class, or train/ and test/")
    tested = [root / name for name in _TESTED if (root / name).is_dir()]
    if (root / "meta" / "train.txt").is_file() and (root / "images").is_dir():
        listing = _by_lists(root)
    elif (root / "train").is_dir() and tested:
        listing = _by_folders(root / "train", tested[0])
    elif (root / "train").is_dir():
        raise DataError(f"{root} has train and nothing to test with: put images of the same classes into test/")
    else:
        listing = _by_hash(root, test_share)
    for part, images in (("train on", listing.train), ("test with", listing.test)):
        if not images:
            raise DataError(f"{root} has no images to {part}; there should be CLASS/*.jpg or *.png in it")
    return listing


def load_folders(
    root: Path,
    *,
    decode_pixels: int = DECODE_PIXELS,
    test_share: float = 0.2,
    cache: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    max_damaged: float = MAX_DAMAGED,
) -> ImageSet:
    """Loads a folder of images, which are decoded once and kept.

    Args:
        root: the folder.
        decode_pixels: the edge of the squares that are kept; see ``thinpipe.data.decoded``. Default: 256.
        test_share: the part that is tested with, where there is no split. Default: 0.2.
        cache: the folder for decoded images. Default: in ``thinpipe.data.locate.cache_folder()``.
        workers: threads that decode. Default: one for each processor.
        progress: is told how many of how many images are decoded; not called where nothing has to be.
        max_damaged: the largest share of the images to train on, or to test with, that may be unreadable; they are left
            out. Default: 0.01.

    Raises:
        DataError: there is no such folder, or no images in it.
        DamagedDataError: the layout contradicts itself, or too many images, or all, cannot be read.
        ImportError: Pillow is not installed.
    """
    listing = list_images(root, test_share=test_share)
    both = (*listing.train, *listing.test)
    result = decoded([each.file for each in both], decode_pixels, cache=cache, workers=workers, progress=progress)
    labels = torch.tensor([each.label for each in both])[result.kept]
    rows = int((result.kept < len(listing.train)).sum())
    if rows in (0, len(labels)):
        part = "train on" if rows == 0 else "test with"
        raise DamagedDataError(f"no image of {root} to {part} can be read; the first is {both[result.lost[0]].file}")
    return ImageSet(
        train_images=result.images[:rows],
        train_labels=labels[:rows],
        test_images=result.images[rows:],
        test_labels=labels[rows:],
        classes=listing.classes,
        skipped=len(result.lost),
        notes=(*_damage(listing, result, max_damaged), *_others(listing)),
    )


def _damage(listing: Listing, result: Decoded, most: float) -> Iterator[str]:
    """Says how many images of each split cannot be read, and which.

    Raises:
        DamagedDataError: of one split they are too many.
    """
    train = len(listing.train)
    for part, first, images in (("train on", 0, listing.train), ("test with", train, listing.test)):
        lost = [images[number - first].file for number in result.lost if 0 <= number - first < len(images)]
        if lost:
            why = f" ({result.reason})" if first == 0 or result.lost[0] >= first else ""
            said = f"{len(lost):,} of {len(images):,} images to {part} cannot be read: {names_text(lost)}{why}"
            yield verify_share(said, len(lost), len(images), most)


def _others(listing: Listing) -> Iterator[str]:
    if listing.others:
        few = len(listing.others) == 1
        yield (
            f"{len(listing.others):,} {'file is' if few else 'files are'} left out, being in no class's folder or "
            f"without an image's ending: {names_text(listing.others)}"
        )


def _by_lists(root: Path) -> Listing:
    named = {part: _listed_names(root / "meta" / f"{part}.txt") for part in ("train", "test")}
    classes = tuple(sorted({name.parts[0] for names in named.values() for name in names}))
    numbers = {name: number for number, name in enumerate(classes)}
    train, test = (
        tuple(Listed(root / "images" / f"{name}.jpg", numbers[name.parts[0]]) for name in named[part])
        for part in ("train", "test")
    )
    return Listing(classes, train, test)


def _listed_names(path: Path) -> list[PurePosixPath]:
    if not path.is_file():
        raise DataError(f"{path} is missing: it lists the official split, a line CLASS/NAME for each image")
    names = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
        name = PurePosixPath(line.strip())
        if not line.strip():
            continue
        # A list from a stranger must not lead out of the folder.
        if len(name.parts) != 2 or ".." in name.parts or name.is_absolute():
            raise DamagedDataError(
                f"{path}, line {number}: should be CLASS/NAME, without .jpg, got {line.strip()!r:.80}"
            )
        names.append(name)
    return names


def _by_folders(train: Path, test: Path) -> Listing:
    classes = _classes(train)
    unknown = sorted(set(_classes(test)) - set(classes))
    if unknown:
        raise DamagedDataError(f"{test} has classes that {train} has not: {', '.join(unknown[:5])}")
    others = [*_loose(train), *_loose(test)]
    parts: list[tuple[Listed, ...]] = []
    for part in (train, test):
        found: list[Listed] = []
        for number, name in enumerate(classes):
            files, beside = _files(part / name) if (part / name).is_dir() else ([], [])
            found += (Listed(file, number) for file in files)
            others += beside
        parts.append(tuple(found))
    return Listing(classes, parts[0], parts[1], tuple(others))


def _by_hash(root: Path, test_share: float) -> Listing:
    if not 0 < test_share < 1:
        raise ValueError(f"test_share is a part between 0 and 1, got {test_share}")
    classes = _classes(root)
    parts: tuple[list[Listed], list[Listed]] = ([], [])
    others = _loose(root)
    for number, name in enumerate(classes):
        files, beside = _files(root / name)
        others += beside
        for file in files:
            parts[_share(file.relative_to(root).as_posix()) < test_share].append(Listed(file, number))
    return Listing(classes, tuple(parts[0]), tuple(parts[1]), tuple(others))


def _share(name: str) -> float:
    # A name with bytes that are no text has surrogates in it, which are bytes again here.
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _classes(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(each.name for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")))


def _files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Finds the images in a folder and in those within it, and the files that are not taken for images.

    Raises:
        DamagedDataError: one of the folders cannot be listed.
    """
    images: list[Path] = []
    others: list[Path] = []
    for parent, _, names in os.walk(folder, onerror=_refuse):
        for name in names:
            # macOS leaves ._NAME.jpg beside NAME.jpg on foreign disks, which is no image.
            if not name.startswith("."):
                (images if Path(name).suffix.lower() in ENDINGS else others).append(Path(parent, name))
    return sorted(images), sorted(others)


def _refuse(error: OSError) -> None:
    raise DamagedDataError(f"{error.filename} cannot be listed, and its images would be missing: {error.strerror}")


def _loose(folder: Path) -> list[Path]:
    """Finds images that are in no class's folder."""
    return sorted(
        each
        for each in folder.iterdir()
        if not each.name.startswith(".") and each.suffix.lower() in ENDINGS and each.is_file()
    )
