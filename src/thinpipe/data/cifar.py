"""CIFAR-10 and CIFAR-100 in the official binary layouts.

::

    cifar-10-batches-bin/  data_batch_1.bin ... data_batch_5.bin, test_batch.bin    10,000 rows each
    cifar-100-binary/      train.bin 50,000 rows, test.bin 10,000 rows

    row of CIFAR-10     [label][1024 red][1024 green][1024 blue]                    3,073 bytes
    row of CIFAR-100    [coarse label][fine label][1024 red][1024 green][1024 blue] 3,074 bytes

The Python versions are pickles, which run code when they are read; they are not read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from thinpipe.data.images import ImageSet
from thinpipe.data.locate import DamagedDataError, DataError, find

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Layout:
    """What the files of a set hold.

    Args:
        train: the files to train on.
        test: the files to test with.
        rows: how many each of them has.
        label_bytes: with how many labels, a byte each, a row begins.
        label: which of them counts.
        classes: how many classes it tells apart.
        names: the file with their names.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    rows: dict[str, int]
    label_bytes: int
    label: int
    classes: int
    names: str


_TEN = _Layout(
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test=("test_batch.bin",),
    rows={**{f"data_batch_{number}.bin": 10_000 for number in range(1, 6)}, "test_batch.bin": 10_000},
    label_bytes=1,
    label=0,
    classes=10,
    names="batches.meta.txt",
)
_HUNDRED_ROWS = {"train.bin": 50_000, "test.bin": 10_000}
_FINE = _Layout(("train.bin",), ("test.bin",), _HUNDRED_ROWS, 2, 1, 100, "fine_label_names.txt")
_COARSE = _Layout(("train.bin",), ("test.bin",), _HUNDRED_ROWS, 2, 0, 20, "coarse_label_names.txt")


def load_cifar10(data_dir: Path | None = None, *, partial: bool = False) -> ImageSet:
    """Loads CIFAR-10 from its binary files.

    Args:
        data_dir: where to look. Default: where ``thinpipe.data.locate.places`` says.
        partial: whether files may be missing, or have fewer rows, as long as there is something to train on and
            something to test with. Default: ``False``, since a run on a fifth of the data looks like any other.

    Raises:
        DataError: it, or a part of it, is not there.
        DamagedDataError: a file has another size than it should, or labels that do not exist.
    """
    return read_cifar(find("cifar10", data_dir), _TEN, partial=partial)


def load_cifar100(data_dir: Path | None = None, *, coarse: bool = False, partial: bool = False) -> ImageSet:
    """Loads CIFAR-100 from its binary files.

    Args:
        data_dir: where to look. Default: where ``thinpipe.data.locate.places`` says.
        coarse: whether the labels are the 20 groups. Default: ``False``, the 100 classes.
        partial: whether files may have fewer rows. Default: ``False``.

    Raises:
        DataError: it, or a part of it, is not there.
        DamagedDataError: a file has another size than it should, or labels that do not exist.
    """
    return read_cifar(find("cifar100", data_dir), _COARSE if coarse else _FINE, partial=partial)


def read_cifar(folder: Path, layout: _Layout, *, partial: bool) -> ImageSet:
    """Reads the files of a folder."""
    train_images, train_labels = _part(folder, layout, layout.train, partial=partial)
    test_images, test_labels = _part(folder, layout, layout.test, partial=partial)
    whole = (sum(layout.rows[name] for name in layout.train), sum(layout.rows[name] for name in layout.test))
    return ImageSet(
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        classes=_class_names(folder / layout.names, layout.classes),
        official=(len(train_labels), len(test_labels)) == whole,
    )


def _part(folder: Path, layout: _Layout, names: tuple[str, ...], *, partial: bool) -> tuple[Tensor, Tensor]:
    present = [name for name in names if (folder / name).is_file()]
    missing = [name for name in names if name not in present]
    if missing and not (partial and present):
        allow = "; partial=True takes what is there" if present else ""
        raise DataError(f"{folder} lacks {', '.join(missing)}: unpack the archive again{allow}")
    width = layout.label_bytes + _PIXELS
    counts = [_rows(folder / name, width, layout.rows[name], partial=partial) for name in present]
    images = torch.empty(sum(counts), 3, 32, 32, dtype=torch.uint8)
    labels = torch.empty(sum(counts), dtype=torch.int64)
    first = 0
    for name, count in zip(present, counts, strict=True):
        # Mapped, and copied once to where it stays: at no time is the set in memory twice.
        rows = np.memmap(folder / name, dtype=np.uint8, mode="r", shape=(count, width))
        chosen = slice(first, first + count)
        np.copyto(images[chosen].numpy(), rows[:, layout.label_bytes :].reshape(count, 3, 32, 32))
        np.copyto(labels[chosen].numpy(), rows[:, layout.label])
        _check_labels(folder / name, labels[chosen], layout.classes)
        first += count
    return images, labels


def _rows(path: Path, width: int, official: int, *, partial: bool) -> int:
    size = path.stat().st_size
    rows, rest = divmod(size, width)
    if rest or not rows:
        raise DamagedDataError(
            f"{path} has {size} bytes, which is no whole number of rows of {width}: it is damaged or not finished; "
            f"unpack the archive again"
        )
    if rows != official and not (partial and rows < official):
        hint = "; partial=True takes what is there" if rows < official else ""
        raise DamagedDataError(f"{path} has {rows} rows instead of {official}: unpack the archive again{hint}")
    return rows


def _check_labels(path: Path, labels: Tensor, classes: int) -> None:
    wrong = (labels >= classes).nonzero().flatten()
    if len(wrong):
        row = int(wrong[0])
        raise DamagedDataError(
            f"{path}: row {row} has the label {int(labels[row])}, of {classes} classes; it is another file, or damaged"
        )


def _class_names(path: Path, classes: int) -> tuple[str, ...]:
    # A help for people's eyes, absent from many copies: numbers do as well.
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []
    names = tuple(line.strip() for line in lines if line.strip())
    return names if len(names) == classes else tuple(str(number) for number in range(classes))
