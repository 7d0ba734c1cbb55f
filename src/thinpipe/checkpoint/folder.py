"""The folder of checkpoints: one appears in it complete, by being renamed, or not at all.

::

    .saving-3f2a/ written, flushed  ->  renamed to step-00000120/  ->  ``latest`` replaced  ->  older ones removed
                                    ^                              ^
        killed before: the old ``latest`` is good                  killed here: the same, and a whole one beside it
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from pathlib import Path

from thinpipe.checkpoint.disk import replace
from thinpipe.checkpoint.entry import flush
from thinpipe.errors import CheckpointError

_log = logging.getLogger("thinpipe")
MANIFEST = "manifest.json"
_POINTER = "latest"
_SAVING = ".saving-"
_NAME = re.compile(r"step-(\d+)(-\d+)?")


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """Finds the last complete checkpoint; None if there is none.

    Raises:
        CheckpointError: the folder says that there is one, and none is there.
    """
    return next(iter(complete(Path(folder))), None)


def complete(folder: Path) -> list[Path]:
    """Lists complete checkpoints, the last one first, then those before it.

    Raises:
        CheckpointError: the folder says that there is one, and none is there.
    """
    pointer = folder / _POINTER
    try:
        name = pointer.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        name = ""
    found = sorted(_whole(folder), key=_age, reverse=True)
    if not found and name:
        raise CheckpointError(
            f"{pointer} names {name!r:.100}, which is not there, nor is another; bring one back from a copy, or begin "
            "anew, in another folder"
        )
    last = next((path for path in found if path.name == name), None)
    if last is None:
        if found:
            _log.warning("%s names %.100r, which is not there as a whole; the last is %s", pointer, name, found[0].name)
        return found
    # What has a higher number belongs to a future that was given up.
    return [last, *(path for path in found if path != last and step_of(path) <= step_of(last))]


def step_of(path: Path) -> int:
    """Reads the number of steps in a checkpoint's name."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _whole(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and (path / MANIFEST).exists()]


def _age(path: Path) -> tuple[int, str]:
    return (path / MANIFEST).stat().st_mtime_ns, path.name


def begin(folder: Path) -> Path:
    """Makes the folder that a checkpoint is written into, and removes what was left of saves that were cut short."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_SAVING}*"):
        shutil.rmtree(left, ignore_errors=True)
    made = folder / f"{_SAVING}{secrets.token_hex(4)}"
    made.mkdir()
    return made


def commit(folder: Path, written: Path, step: int) -> Path:
    """Makes of what was written the last checkpoint."""
    for each in (*(inner for inner in written.iterdir() if inner.is_dir()), written):
        flush(each)
    # Never in the place of another: that would be gone for a moment, and it may be the one that ``latest`` names.
    names = [f"step-{step:08d}", *(f"step-{step:08d}-{again}" for again in range(1, 1000))]
    final = next(folder / name for name in names if not (folder / name).exists())
    written.rename(final)
    try:
        flush(folder)
        replace(folder / _POINTER, final.name + "\n")
    except OSError:
        shutil.rmtree(final, ignore_errors=True)  # or every attempt would leave another one on a full disk
        raise
    return final


def prune(folder: Path, keep: int) -> None:
    """Removes all but the last checkpoints, by the time at which they were written."""
    current = latest(folder)
    if current is None:
        return
    found = _whole(folder)
    # First those from which training went back: they are damaged, or belong to a future that was given up.
    found.sort(key=lambda path: (path == current or step_of(path) < step_of(current), _age(path)))
    for old in found[: max(0, len(found) - keep)]:
        if old == current:
            continue
        # What is without its manifest is no checkpoint: a removal that is cut short leaves none that looks whole.
        (old / MANIFEST).unlink()
        shutil.rmtree(old, ignore_errors=True)
