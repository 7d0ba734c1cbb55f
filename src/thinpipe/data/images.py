"""A set of images in memory: bytes, with their labels, to train on and to test with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from thinpipe.data.locate import DamagedDataError

MAX_DAMAGED = 0.01
"""The share of a split that may be damaged, where nobody says otherwise."""
_NAMED = 5


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
        notes: what a reader of a result must know: which files were left out. Default: nothing.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    official: bool = False
    skipped: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows, tested = len(self.train_labels), len(self.test_labels)
        sides = " x ".join(str(side) for side in self.train_images.shape[2:])
        text = f"{rows} + {tested} images of {sides} pixels in {len(self.classes)} classes"
        text += "" if self.official else ", not an official set and split"
        return "; ".join((text, *self.notes))


def names_text(names: Sequence[object]) -> str:
    """Lists the first few of some names."""
    return ", ".join(map(str, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")


def verify_share(said: str, lost: int, rows: int, most: float) -> str:
    """Checks that no more than a share of a split is damaged.

    Args:
        said: how many rows are damaged, which, and in what way.
        lost: their number.
        rows: of the whole split.
        most: the largest share that may be.

    Returns:
        A note about it.

    Raises:
        DamagedDataError: there are more; the message names the option that allows it.
    """
    share = lost / rows
    if share > most:
        allowed = math.ceil(1000 * share) / 1000
        raise DamagedDataError(
            f"{said}. That is {share:.1%}, and at most {most:.1%} may be (max_damaged): fetch the files again, take "
            f"them out of the data set, or go on all the same with --set max_damaged={allowed:g}"
        )
    return f"{said} ({share:.2%})"
