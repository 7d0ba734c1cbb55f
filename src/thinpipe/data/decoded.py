"""Image files decoded once: squares of bytes that are kept in a file and mapped into memory from then on.

An image keeps the square in its middle, whose edge is its shorter side, resized to one edge for all::

    +--------------------+
    |    |          |    |          +------+
    |lost|  square  |lost|   -->    |      |  decode_pixels
    |    |          |    |          +------+
    +--------------------+

So a random crop later sees no more than that square: what is left and right of it is never trained on (a quarter of a
photo of 4:3, a third of one of 3:2), and crops smaller than the edge are enlarged from ``decode_pixels`` and not from
the photo's own pixels. That is the price of images in one tensor, from which a GPU is fed without a decoder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from thinpipe.data.locate import DamagedDataError, cache_folder
from thinpipe.errors import ThinpipeError
from thinpipe.extras import need

DECODE_PIXELS = 256
"""The edge of decoded images where nobody says otherwise: what an evaluation at 224 pixels resizes to."""

Progress = Callable[[int, int], None]
"""Is told how many images are done, and how many there are."""

_FORM = "1"
"""Changes when images are decoded in another way, so that none of the old way are taken."""


class CacheError(ThinpipeError, OSError):
    """Decoded images that cannot be kept."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """The images of some files.

    Args:
        images: rows x 3 x pixels x pixels, uint8, mapped into memory.
        kept: for each row, the number of its file.
        lost: the numbers of the files without a row, since they could not be read.
        reason: why the first of those could not be read; empty if all could.
    """

    images: Tensor
    kept: Tensor
    lost: tuple[int, ...] = ()
    reason: str = ""


def decoded(
    files: Sequence[Path],
    pixels: int = DECODE_PIXELS,
    *,
    cache: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Decoded:
    """Decodes files, or takes what an earlier call kept of the same files.

    Files are the same if their paths, sizes and times of change are. What is kept is plain arrays (.npy), and any of
    it may be deleted at any time. Files that could not be read are tried again each time: the disk or the right to
    read them may have been at fault, and not the files.

    Args:
        files: the images.
        pixels: the edge of a decoded image. Default: 256.
        cache: the folder in which results are kept. Default: ``decoded`` in the cache folder.
        workers: threads that decode. Default: one for each processor.
        progress: is told how many are done. Default: nobody is.

    Raises:
        DamagedDataError: none of the files can be read.
        CacheError: there is no room for the result, or no right to write it.
        ImportError: Pillow is not installed.
    """
    if pixels < 1:
        raise ValueError(f"decoded images have at least 1 pixel a side, got {pixels}")
    folder = cache_folder() / "decoded" if cache is None else cache
    target = folder / _key(files, pixels)
    found = _load(target, files, pixels)
    if found is not None:
        if not found.lost:
            return found
        faults = list(_squares([files[number] for number in found.lost], pixels, workers))
        if all(isinstance(each, Exception) for each in faults):
            return replace(found, reason=str(faults[0]))
        shutil.rmtree(target, ignore_errors=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_room(folder, len(files) * 3 * pixels * pixels)
        with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder, ignore_cleanup_errors=True) as unfinished:
            reason = _decode(files, pixels, Path(unfinished), workers, progress)
            # Another process may have been faster, with the same images; or what is there is damaged.
            if _load(target, files, pixels) is None:
                shutil.rmtree(target, ignore_errors=True)
                Path(unfinished).rename(target)
    except OSError as error:
        if isinstance(error, ThinpipeError):
            raise
        raise CacheError(
            f"decoded images cannot be kept in {folder} ({error}): set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    found = _load(target, files, pixels)
    if found is None:
        raise CacheError(
            f"{target} was written and cannot be read back; is the disk full, or another program deleting it?"
        )
    return replace(found, reason=reason)


def _key(files: Sequence[Path], pixels: int) -> str:
    digest = hashlib.blake2b(f"{_FORM} {pixels}".encode(), digest_size=16)
    for file in files:
        size, changed = -1, -1
        # A file that is listed and missing is one that cannot be read, as it will turn out.
        with suppress(OSError):
            state = file.stat()
            size, changed = state.st_size, state.st_mtime_ns
        digest.update(os.fsencode(file.absolute()) + f"\0{size} {changed}\0".encode())
    return digest.hexdigest()


def _load(folder: Path, files: Sequence[Path], pixels: int) -> Decoded | None:
    try:
        # Copy on write: torch wants memory that it may write to, and nothing ever reaches the file.
        images = np.load(folder / "images.npy", mmap_mode="c", allow_pickle=False)
        kept = np.load(folder / "kept.npy", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None  # not there, or cut short by a full disk: made again in either case
    fits = images.shape == (len(kept), 3, pixels, pixels) and images.dtype == np.uint8 and kept.dtype == np.int64
    if not fits or not len(kept) or kept.min() < 0 or kept.max() >= len(files):
        return None
    lost = tuple(sorted(set(range(len(files))) - set(kept.tolist())))
    return Decoded(torch.from_numpy(images), torch.from_numpy(kept), lost)


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CacheError(
            f"decoded images need {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free: "
            f"take a smaller decode_pixels, or set XDG_CACHE_HOME to a folder with more room"
        )


def _decode(files: Sequence[Path], pixels: int, folder: Path, workers: int | None, progress: Progress | None) -> str:
    """Decodes files into a folder; tells why the first of those that cannot be read cannot."""
    kept: list[int] = []
    reason: Exception | None = None
    with (folder / "images.npy").open("wb") as out:
        begin = _header(out, len(files), pixels)
        for number, image in enumerate(_squares(files, pixels, workers)):
            if isinstance(image, Exception):
                reason = reason or image
            else:
                out.write(image.tobytes())
                kept.append(number)
            if progress is not None:
                progress(number + 1, len(files))
        # A header leaves room for more rows than there are: the right number can be set afterwards.
        out.seek(0)
        if _header(out, len(kept), pixels) != begin:
            raise AssertionError("a .npy header with another number of rows should have the same length")
    if not kept:
        raise DamagedDataError(f"none of {len(files)} files can be read as an image; {files[0]}: {reason}") from reason
    np.save(folder / "kept.npy", np.array(kept, dtype=np.int64), allow_pickle=False)
    return "" if reason is None else str(reason)


def _header(out: BinaryIO, rows: int, pixels: int) -> int:
    npy.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": (rows, 3, pixels, pixels)})
    return out.tell()


def _squares(files: Sequence[Path], pixels: int, workers: int | None) -> Iterator[np.ndarray[Any, Any] | Exception]:
    _pillow()  # said once and at once, instead of for each file
    threads = workers or os.cpu_count() or 1
    waiting: deque[Future[np.ndarray[Any, Any] | Exception]] = deque()
    # Pillow decodes without holding Python's lock. A short queue: results of a slow disk's cache must not pile up.
    with ThreadPoolExecutor(threads, "decode") as pool:
        for file in files:
            waiting.append(pool.submit(_square_or_error, file, pixels))
            if len(waiting) > 4 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _square_or_error(file: Path, pixels: int) -> np.ndarray[Any, Any] | Exception:
    try:
        return decode(file, pixels)
    except MemoryError:
        raise  # which says nothing about the file
    except Exception as error:
        return error  # a damaged file makes Pillow's decoders raise nearly anything; all of it means the same here


def decode(file: Path, pixels: int) -> np.ndarray[Any, Any]:
    """Decodes one file to 3 x pixels x pixels bytes: the square in its middle, resized with antialiasing."""
    pillow = _pillow()
    with pillow.open(file) as opened:
        return square(opened, pixels)


def square(image: Any, pixels: int) -> np.ndarray[Any, Any]:
    """Takes the square in the middle of Pillow's image, as 3 x pixels x pixels bytes."""
    pillow = _pillow()
    if "transparency" in image.info:
        image = image.convert("RGBA")  # by way of which alone Pillow converts palettes with transparency in silence
    image = image.convert("RGB")
    width, height = image.size
    edge = min(width, height)
    left, top = (width - edge) / 2, (height - edge) / 2
    # The pixels of the usual resize and centre crop, and no others: an image of 1 x 100,000 pixels must not become one
    # of 256 x 25,600,000 first.
    image = image.resize((pixels, pixels), pillow.Resampling.BILINEAR, box=(left, top, left + edge, top + edge))
    return np.ascontiguousarray(np.asarray(image, dtype=np.uint8).transpose(2, 0, 1))


def _pillow() -> Any:
    need("files of images", "PIL")
    from PIL import Image

    return Image
