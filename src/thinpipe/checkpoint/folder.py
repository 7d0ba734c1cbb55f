"""The folder of checkpoints: one appears in it complete, by being renamed, or not at all.

::

    .saving-3f2a/ written, flushed  ->  renamed to step-00000120/  ->  ``latest`` replaced  ->  older ones removed
                                    ^                              ^
        killed before: the old ``latest`` is good                  killed here: the same, and a whole one beside it
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from pathlib import Path

from thinpipe.checkpoint.entry import flush
from thinpipe.errors import CheckpointError

MANIFEST = "manifest.json"
_POINTER = "latest"
_SAVING = ".saving-"
_NAME = re.compile(r"step-(\d+)(-\d+)?")


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """Finds the last complete checkpoint; None if there is none.

    Raises:
        CheckpointError: the folder says that there is one, and it is not there.
    """
    pointer = Path(folder) / _POINTER
    try:
        name = pointer.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    found = Path(folder) / name
    if not _NAME.fullmatch(name) or not (found / MANIFEST).exists():
        raise CheckpointError(f"{pointer} names {name!r:.100}, which is not there; write the name of another into it")
    return found


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
    flush(folder)
    pointer = folder / f"{_POINTER}.part"
    pointer.write_text(final.name + "\n", encoding="utf-8")
    flush(pointer)
    pointer.replace(folder / _POINTER)
    flush(folder)
    return final


def prune(folder: Path, keep: int) -> None:
    """Removes all but the last checkpoints, by the time at which they were written."""
    current = latest(folder)
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and (path / MANIFEST).exists()]
    found.sort(key=lambda path: ((path / MANIFEST).stat().st_mtime_ns, path.name))
    for old in found[: max(0, len(found) - keep)]:
        if old == current:
            continue
        # What is without its manifest is no checkpoint: a removal that is cut short leaves none that looks whole.
        (old / MANIFEST).unlink()
        shutil.rmtree(old, ignore_errors=True)
