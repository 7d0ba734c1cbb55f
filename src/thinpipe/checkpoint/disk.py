"""Files that must survive a crash: written whole, with a digest, and tried again while a disk is full.

One way to write a small file (``replace``), one to find out whether a file is what was written (``digest``,
``sealed``), one to wait for a disk (``until_written``), and one to keep a folder to one process (``FolderLock``).
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from thinpipe.checkpoint.entry import flush
from thinpipe.errors import DiskError, FolderError, ThinpipeError

_log = logging.getLogger("thinpipe")
SHORTEST, LONGEST = 0.5, 10.0
"""Seconds between two attempts to write, at first and at last."""
_LOCK, _COPY, _DIGEST = ".lock", ".copy", "digest"
_REASONS = {
    errno.ENOSPC: "no space left on its disk",
    errno.EDQUOT: "its disk quota is used up",
    errno.EFBIG: "a file larger than its disk allows",
    errno.EROFS: "its disk is read-only",
}
T = TypeVar("T")


def replace(path: Path, text: str) -> None:
    """Writes a small file in the place of the last one; whoever is killed meanwhile leaves one or the other.

    Raises:
        OSError: it cannot be written; the last one is still there, and nothing else is.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        flush(part)
        part.replace(path)
        flush(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def replace_twice(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a small file of JSON, and a copy of it for the day when one of the two is damaged."""
    text = json.dumps(sealed(content), indent=2) + "\n"
    for place in (path, path.with_name(f"{path.name}{_COPY}")):
        replace(place, text)


def read_twice(path: Path) -> dict[str, Any] | None:
    """Reads what ``replace_twice`` wrote, from the copy if need be; None if both are damaged or missing."""
    for place in (path, path.with_name(f"{path.name}{_COPY}")):
        with suppress(OSError, ValueError, RecursionError):
            found = json.loads(place.read_bytes())
            if isinstance(found, dict) and is_intact(found):
                if place != path:
                    _log.warning("%s is damaged or missing; its copy beside it is used", path)
                found.pop(_DIGEST, None)
                return found
    return None


def digest(path: Path) -> str:
    """Makes a short text of all bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def digest_of(text: str) -> str:
    """Makes the same of a text."""
    return hashlib.blake2b(text.encode()).hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a digest of everything else to what is to be written as JSON."""
    return {**content, _DIGEST: digest_of(json.dumps(content))}


def is_intact(content: Mapping[str, Any]) -> bool:
    """Tells whether content is what ``sealed`` made; older files have no digest, and are believed."""
    rest = {name: value for name, value in content.items() if name != _DIGEST}
    return _DIGEST not in content or content[_DIGEST] == digest_of(json.dumps(rest))


def damage_of(path: Path, size: int, expected: str) -> str | None:
    """Says what is wrong with a file, without its folder; None if it is what was written.

    Args:
        path: of the file.
        size: that it was written with.
        expected: its digest.
    """
    try:
        found = path.stat().st_size
        if found != size:
            return f"{path.name} has {found} of {size} bytes"
        return None if digest(path) == expected else f"the checksum of {path.name} is wrong"
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read: {os.strerror(error.errno or errno.EIO)}"


def reason_of(error: Exception) -> str | None:
    """Says why a disk did not take something, without naming files; None if an error is of another kind."""
    if isinstance(error, DiskError):
        return error.reason
    number = None
    if isinstance(error, OSError) and not isinstance(error, ThinpipeError):
        number = error.errno or errno.EIO
    elif type(error).__name__ == "SafetensorError" and (found := re.search(r"(?:os error|code:) (\d+)", str(error))):
        number = int(found[1])
    return None if number is None else _REASONS.get(number, os.strerror(number))


def until_written(
    what: str, write: Callable[[], T], say: Callable[[str], None] = _log.warning, *, who: str = "this process"
) -> T:
    """Writes something; as long as the disk does not take it, waits and tries again.

    Args:
        what: is written, for people: ``step 30``.
        write: writes it; when it fails, it leaves nothing behind.
        say: told why there is a wait, once for each reason, and that it is over (default: the log).
        who: writes it, for people.

    Raises:
        Exception: what ``write`` raised, if that was not the disk's fault.
    """
    pause, told = SHORTEST, ""
    while True:
        try:
            done = write()
        except Exception as error:
            reason = reason_of(error)
            if reason is None:
                raise
            if reason != told:
                say(f"{who} cannot save {what}: {reason}; waiting, trying again every {LONGEST:g} s")
            told = reason
        else:
            if told:
                say(f"{who} has saved {what}, and goes on")
            return done
        time.sleep(pause)
        pause = min(2 * pause, LONGEST)


class FolderLock:
    """A folder that this process alone may write into, until it ends or releases it; made if need be, and tried.

    Args:
        folder: the folder.
        advice: what to do if it cannot be had, for people: ``choose another --folder``.

    Raises:
        FolderError: it cannot be written, or another process has it.
    """

    _number: int | None = None

    def __init__(self, folder: Path, advice: str) -> None:
        self._path, self._made = folder / _LOCK, not folder.exists()
        try:
            while self._number is None:
                _make(folder)
                with suppress(FileNotFoundError):  # whoever had it before may be removing it, empty, this moment
                    self._number = self._locked(advice)
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(bytes(1))
        except OSError as error:
            if isinstance(error, ThinpipeError):
                raise
            self.release()
            raise FolderError(f"{folder} cannot be written: {error.strerror or error}; {advice}") from error

    def release(self) -> None:
        """Lets others have the folder, and removes one that it has made and nobody has used; safe to call twice."""
        number, self._number = self._number, None
        if number is not None:
            with suppress(OSError):
                self._path.unlink()
                if self._made:
                    self._path.parent.rmdir()
            os.close(number)  # and with it the lock, as when the process is killed

    def _locked(self, advice: str) -> int | None:
        """Opens and locks the file; None if somebody has removed it meanwhile."""
        number = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _flock(number):
                owner = os.read(number, 20).decode(errors="replace").strip() or "unknown"
                who = "this" if owner == str(os.getpid()) else "another"
                raise FolderError(
                    f"{who} process (pid {owner}) uses {self._path.parent} already; {advice}", is_busy=True
                )
            if os.path.samestat(os.fstat(number), self._path.stat()):
                os.truncate(number, 0)
                os.write(number, f"{os.getpid()}\n".encode())
                return number
        except BaseException:
            os.close(number)
            raise
        os.close(number)
        return None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        # Something else has the name; or the folder was there when it was to be made, and gone when it was looked at.
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise


def _flock(number: int) -> bool:
    try:
        import fcntl
    except ImportError:  # not everywhere; there nobody is kept out
        return True
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
