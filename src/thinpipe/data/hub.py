"""Data sets of the Hugging Face hub, by way of its package ``datasets``, in the same shapes as all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from thinpipe.data.decoded import DECODE_PIXELS, square
from thinpipe.data.images import ImageSet
from thinpipe.data.locate import DamagedDataError, DataError
from thinpipe.data.texts import Texts, TextSet


def load_hub_texts(
    repository: str,
    config: str | None = None,
    *,
    first: str,
    second: str | None = None,
    label: str = "label",
    train: str = "train",
    test: str = "validation",
    **options: Any,
) -> TextSet:
    """Loads texts: ``load_hub_texts("nyu-mll/glue", "cola", first="sentence")``.

    Args:
        repository: its name on the hub; or ``csv``, ``json`` and the like, with ``data_files``.
        config: the part of it, where it has parts. Default: ``None``.
        first: the column of the texts.
        second: the column of the second texts of pairs. Default: ``None``, there are no pairs.
        label: the column of the classes. Default: ``label``.
        train: the split to train on. Default: ``train``.
        test: the split to test with. Default: ``validation``, since GLUE keeps the labels of ``test`` to itself.
        **options: for ``datasets.load_dataset``.

    Raises:
        ImportError: the package is not installed.
        DataError: the hub, or that data set, cannot be reached.
        DamagedDataError: it has no such columns, or rows without a class or a text.
    """
    parts = [_load(repository, config, split, options) for split in (train, test)]
    made = []
    for split, rows in zip((train, test), parts, strict=True):
        _check_columns(repository, rows, (first, label, *((second,) if second else ())))
        texts = [None if name is None else _texts(repository, split, name, rows[name]) for name in (first, second)]
        made.append(Texts(texts[0] or [], texts[1], _labels(repository, rows[label])))
    return TextSet(made[0], made[1], _classes(repository, parts[0], label, [each.labels for each in made]))


def load_hub_images(
    repository: str,
    config: str | None = None,
    *,
    image: str = "image",
    label: str = "label",
    train: str = "train",
    test: str = "test",
    decode_pixels: int = DECODE_PIXELS,
    **options: Any,
) -> ImageSet:
    """Loads images into memory: ``load_hub_images("uoft-cs/cifar10", image="img", decode_pixels=32)``.

    Args:
        repository: its name on the hub; or ``imagefolder``, with ``data_dir``.
        config: the part of it, where it has parts. Default: ``None``.
        image: the column of the images. Default: ``image``.
        label: the column of the classes. Default: ``label``.
        train: the split to train on. Default: ``train``.
        test: the split to test with. Default: ``test``.
        decode_pixels: the edge of the squares that are kept of them. Default: 256.
        **options: for ``datasets.load_dataset``.

    Raises:
        ImportError: the package, or Pillow, is not installed.
        DataError: the hub, or that data set, cannot be reached.
        DamagedDataError: it has no such columns, or rows without a class, or without an image that can be read.
    """
    parts = [_load(repository, config, split, options) for split in (train, test)]
    images, labels = [], []
    for split, rows in zip((train, test), parts, strict=True):
        _check_columns(repository, rows, (image, label))
        out = torch.empty(len(rows), 3, decode_pixels, decode_pixels, dtype=torch.uint8)
        source = iter(rows)
        for number in range(len(rows)):
            try:
                np.copyto(out[number].numpy(), square(next(source)[image], decode_pixels))
            except ImportError:
                raise
            except Exception as error:  # decoders raise nearly anything
                raise DamagedDataError(
                    f"{repository}, row {number} of {split}: its image cannot be read ({error}); fetch the data set "
                    f"again, or take the row out of it"
                ) from error
        images.append(out)
        labels.append(_labels(repository, rows[label]))
    return ImageSet(
        train_images=images[0],
        train_labels=labels[0],
        test_images=images[1],
        test_labels=labels[1],
        classes=_classes(repository, parts[0], label, labels),
    )


def _load(repository: str, config: str | None, split: str, options: dict[str, Any]) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            f"{repository} comes from the Hugging Face hub by way of its package; run: pip install datasets"
        ) from error
    try:
        return datasets.load_dataset(repository, config, split=split, **options)
    except (OSError, ValueError) as error:
        # Without a network it raises ConnectionError, for a name that does not exist a FileNotFoundError, for a
        # config or split that does not a ValueError: all of them name what was asked for.
        asked = " ".join(filter(None, (repository, config, split)))
        raise DataError(
            f"the Hugging Face hub did not give {asked} ({error}): check the name and the network, or fetch it where "
            f"there is one and give its files with --data-dir"
        ) from error


def _check_columns(repository: str, rows: Any, names: Sequence[str]) -> None:
    missing = [name for name in names if name not in rows.column_names]
    if missing:
        has = ", ".join(rows.column_names)
        raise DamagedDataError(f"{repository} has no column {', '.join(missing)}; it has {has}")


def _texts(repository: str, split: str, name: str, values: Iterable[Any]) -> list[str]:
    texts = list(values)
    lost = next((row for row, text in enumerate(texts) if text is None), None)
    if lost is not None:
        raise DamagedDataError(f"{repository}, row {lost} of {split} has no text in the column {name}; take it out")
    return [str(text) for text in texts]


def _labels(repository: str, values: Iterable[Any]) -> torch.Tensor:
    labels = list(values)
    wrong = [each for each in labels if type(each) is not int or each < 0]
    if wrong:
        raise DamagedDataError(
            f"{repository}: a class is a number from 0, got {wrong[0]!r:.40}; -1 marks a split without labels"
        )
    return torch.tensor(labels, dtype=torch.int64)


def _classes(repository: str, rows: Any, label: str, labels: Sequence[torch.Tensor]) -> tuple[str, ...]:
    names = getattr(rows.features[label], "names", None)
    count = max((int(each.max()) for each in labels if len(each)), default=-1) + 1
    if names and count > len(names):
        raise DamagedDataError(f"{repository}: a row has the class {count - 1}, and there are {len(names)} with names")
    return tuple(names) if names else tuple(str(number) for number in range(count))
