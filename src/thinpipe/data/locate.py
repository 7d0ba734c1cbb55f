"""Where data sets are, and what to do about one that is not there.

::

    --data-dir DIR           looked through alone, where it is given; otherwise
    $THINPIPE_DATA           looked through first, where it is set, and then
    ~/.cache/thinpipe/data   or $XDG_CACHE_HOME/thinpipe/data
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from thinpipe.errors import ThinpipeError

VARIABLE = "THINPIPE_DATA"
"""The environment variable with the folder of data sets."""


class DataError(ThinpipeError, FileNotFoundError):
    """A data set that is not there, or not whole; the message says what to put where."""


class DamagedDataError(ThinpipeError, ValueError):
    """Files of a data set that are there and are not what they should be."""


@dataclass(frozen=True)
class Layout:
    """A form in which a data set may lie in a folder of data sets.

    Args:
        folder: its own folder in there.
        sign: a pattern; a file or folder of that name tells that it is this layout.
        holds: what belongs into the folder, for an error's reader.
    """

    folder: str
    sign: str
    holds: str

    def matches(self, folder: Path) -> bool:
        """Tells whether a folder has this layout; its files are for the reader to check."""
        return folder.is_dir() and any(True for _ in folder.glob(self.sign))


@dataclass(frozen=True)
class Source:
    """What is known of a data set before it is there.

    Args:
        layouts: the forms that are read, the official one first.
        download: which file to take from the page.
        page: the official page.
        refused: a folder in which people often have it and that is not read.
        why: the reason for that.
    """

    layouts: tuple[Layout, ...]
    download: str
    page: str
    refused: str = ""
    why: str = ""


_CLASSES = "train/CLASS/*.png or *.jpg, and the same in test/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"
_PICKLES = "its files are Python pickles, which run code when they are read"
_FOOD = "images/CLASS/*.jpg, meta/train.txt and meta/test.txt"


def _glue(task: str) -> Source:
    files = "train.tsv and dev.tsv"
    folders = (f"glue/{task}", f"glue_data/{task}", f"GLUE/{task}", task)
    layouts = tuple(Layout(folder, "train.tsv", files) for folder in folders)
    return Source(layouts, f"{task}.zip", "https://gluebenchmark.com/tasks")


SOURCES = {
    "cifar10": Source(
        (
            Layout("cifar-10-batches-bin", "*.bin", "data_batch_1.bin to data_batch_5.bin, and test_batch.bin"),
            Layout("cifar10", "train", _CLASSES),
        ),
        "cifar-10-binary.tar.gz (the binary version)",
        _CIFAR,
        "cifar-10-batches-py",
        _PICKLES,
    ),
    "cifar100": Source(
        (
            Layout("cifar-100-binary", "*.bin", "train.bin and test.bin"),
            Layout("cifar100", "train", _CLASSES),
        ),
        "cifar-100-binary.tar.gz (the binary version)",
        _CIFAR,
        "cifar-100-python",
        _PICKLES,
    ),
    "food101": Source(
        (
            Layout("food-101", "meta/train.txt", _FOOD),
            Layout("food101", "meta/train.txt", _FOOD),
            Layout("food101", "train", _CLASSES),
        ),
        "food-101.tar.gz",
        "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
    ),
    "rte": _glue("RTE"),
    "cola": _glue("CoLA"),
}
"""The data sets that are found by name."""


def cache_folder() -> Path:
    """Returns the folder for all that can be fetched or made again: ``~/.cache/thinpipe``, by the user's settings."""
    # The convention asks for an absolute path, and for anything else to be ignored.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "thinpipe"


def places(data_dir: Path | None = None) -> tuple[Path, ...]:
    """Returns the folders of data sets, in the order in which they are looked through.

    Args:
        data_dir: the one that the user named, which is then the only one. Default: ``None``, nobody did.
    """
    if data_dir is not None:
        return (data_dir.expanduser(),)
    named = os.environ.get(VARIABLE, "")
    return (*((Path(named).expanduser(),) if named else ()), cache_folder() / "data")


def find(name: str, data_dir: Path | None = None) -> Path:
    """Finds the folder of a data set.

    Args:
        name: ``cifar10``, ``cifar100``, ``food101``, ``rte`` or ``cola``.
        data_dir: a folder of data sets, or the data set's own. Default: where ``places`` says.

    Raises:
        DataError: it is not there, or there is no such data set.
    """
    source = _source(name)
    tried: list[str] = []
    for place in places(data_dir):
        for layout in source.layouts:
            folder = place / layout.folder
            if layout.matches(folder):
                return folder
            # The folder itself is as good an answer to "where?" as the one around it.
            if place.name == Path(layout.folder).name and layout.matches(place):
                return place
            tried.append(f"{folder}{os.sep}{layout.sign}")
    raise DataError(_advice(name, source, places(data_dir), tried))


def _source(name: str) -> Source:
    if name in SOURCES:
        return SOURCES[name]
    near = difflib.get_close_matches(name.lower(), SOURCES, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise DataError(f"there is no data set {name!r:.40}; there are {', '.join(SOURCES)}{meant}")


def _advice(name: str, source: Source, looked: tuple[Path, ...], tried: list[str]) -> str:
    official = source.layouts[0]
    refused = [place / source.refused for place in looked if source.refused and (place / source.refused).is_dir()]
    lines = [
        f"{name} is not there. Get {source.download} from {source.page} and unpack it, so that there is",
        f"  {looked[0] / official.folder}  with {official.holds}.",
        *(f"{folder} is there and is not used: {source.why}." for folder in refused),
        f"To use another folder, give --data-dir or set {VARIABLE}. Looked for:",
        *(f"  {path}" for path in tried),
    ]
    return "\n".join(lines)
