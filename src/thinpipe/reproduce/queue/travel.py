"""Takes records and unfinished runs from one machine to the next, in a few small files.

::

    DIR/records.tar.gz                 sortquant-cifar10/none-seed0.json ...       all records that are new
    DIR/run-1f3a09c2.1-of-1.tar.gz     sortquant-cifar10/wave4-seed0/recipe.json   a run: its log, and the state that
                                                                    /log.jsonl     it was saved in last
                                                                    /states/...

A run that is larger than a file may be is cut into several; the furthest advanced ones are packed first. Nothing in
these files is code: they hold JSON and safetensors, and what else somebody may have put into them is refused.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from thinpipe.bench.record import Record
from thinpipe.checkpoint.entry import flush
from thinpipe.checkpoint.folder import latest, step_of
from thinpipe.errors import ThinpipeError
from thinpipe.reproduce.queue.place import Place, saved_step
from thinpipe.reproduce.training.figures import CROSSED
from thinpipe.train.bottlenecks import FILE
from thinpipe.train.log import BusyError, EvaluationLine, RunFolder

_RECORDS = "records.tar.gz"
_RUN = re.compile(r"run-([0-9a-f]{8})\.(\d)-of-(\d)\.tar\.gz")
_PART = re.compile(r"[A-Za-z0-9_+.=,-]{1,200}")
_ENDINGS = (".json", ".jsonl", ".safetensors")
_POINTER, _MEMORIES = "latest", "memories"
_FILES = ("recipe.json", "log.jsonl", CROSSED, FILE)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much may travel.

    Args:
        files: how many files.
        size: bytes of each.
        total: bytes of all of them, which may have to travel beside something else.
        unpacked: bytes that the contents of one may have, so that a small file cannot fill a disk.
        members: how many files may be in one.
    """

    files: int = 8
    size: int = 16 << 20
    total: int = 48 << 20
    unpacked: int = 512 << 20
    members: int = 20_000


class TravelError(ThinpipeError, ValueError):
    """A file that is not what was packed."""


@dataclass
class Carrier:
    """Unpacks a folder, and packs it again.

    Args:
        folder: with the files; made if need be.
        place: where records and runs are.
        limits: how much may travel (default: eight files of 16 MiB).
        notes: what somebody should know: what was left out, and why.
    """

    folder: Path
    place: Place
    limits: Limits = field(default_factory=Limits)
    notes: list[str] = field(default_factory=list)
    _known: set[Path] = field(default_factory=set)
    _taken: set[Path] = field(default_factory=set)

    @property
    def room(self) -> int:
        """How many bytes a run may have to be packed, if it is alone."""
        return min(self.limits.total, (self.limits.files - 1) * self.limits.size)

    def unpack(self) -> None:
        """Takes records and runs out of the folder, unless they are on the disk already, or are further there.

        What cannot be read is left where it is, with a note.
        """
        # What is on the disk by now is known to whoever brought it there; what is unpacked is still to be handed on.
        self._known = set(self._records())
        path = self.folder / _RECORDS
        if path.exists():
            self._trying(self._unpack_records, [path])
        for pieces in _runs_in(self.folder):
            self._trying(self._unpack_run, pieces)

    def _trying(self, unpack: Callable[[list[Path]], None], pieces: list[Path]) -> None:
        try:
            unpack(pieces)
        except (ThinpipeError, OSError, EOFError, tarfile.TarError, ValueError) as error:
            self.notes.append(f"{pieces[0].name} is left where it is: {error}")
        else:
            self._taken.update(pieces)

    def _unpack_records(self, pieces: list[Path]) -> None:
        with tempfile.TemporaryDirectory(prefix="unpacking-", dir=_made(self.place.runs)) as place:
            self._extract(pieces, Path(place))
            for path in sorted(Path(place).rglob("*.json")):
                Record.load(path)  # which says what is wrong with one that is none
                target = self.place.results / path.relative_to(place)
                if not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(target)

    def _unpack_run(self, pieces: list[Path]) -> None:
        with tempfile.TemporaryDirectory(prefix="unpacking-", dir=_made(self.place.runs)) as place:
            self._extract(pieces, Path(place))
            found = [path.parent for path in Path(place).glob("*/*/recipe.json")]
            if len(found) != 1:
                raise TravelError(f"it has {len(found)} runs instead of one")
            came = RunFolder(found[0])
            came.origin()  # which says what is wrong with one that is damaged
            if not saved_step(came):
                raise TravelError("its run has no saved state")
            name = came.path.relative_to(place)
            if not (self.place.results / name.with_name(f"{name.name}.json")).exists():
                _put(came, RunFolder(self.place.runs / name))

    def _extract(self, pieces: list[Path], target: Path) -> None:
        """Writes the files of an archive, each checked before anything of it is written."""
        left = self.limits.unpacked
        stream = _Bounded(gzip.GzipFile(fileobj=_joined(pieces)), 2 * self.limits.unpacked)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for number, member in enumerate(archive):
                name = PurePosixPath(member.name)
                plain = member.isfile() and not name.is_absolute() and all(map(_PART.fullmatch, name.parts))
                known = name.suffix in _ENDINGS or name.name == _POINTER
                if not plain or not known or ".." in name.parts or len(name.parts) > 8:
                    raise TravelError(f"it has {member.name!r:.100}, which is no file of a run and no record")
                left -= member.size
                if left < 0 or number >= self.limits.members:
                    raise TravelError("it has more in it than a run or records would have")
                path = target.joinpath(*name.parts)
                path.parent.mkdir(parents=True, exist_ok=True)
                source = archive.extractfile(member)
                assert source is not None
                with path.open("wb") as out:
                    shutil.copyfileobj(source, out)

    def pack(self) -> list[Path]:
        """Packs all new records and, as far as there is room, unfinished runs; returns the files that were written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".packing-", dir=self.folder) as place:
            written = self._packed(Path(place))
            finals = [self.folder / path.name for path in written]
            for path, final in zip(written, finals, strict=True):
                flush(path)
                path.replace(final)
        # Not before the new ones are there; and never what could not be read.
        for old in self._taken - set(finals):
            old.unlink(missing_ok=True)
        self._taken = set(finals)
        return finals

    def _packed(self, place: Path) -> list[Path]:
        written, others = [], [path for path in _ours(self.folder) if path not in self._taken]
        new = sorted(set(self._records()) - self._known)
        if new:
            written.append(_archive(place / _RECORDS, new, self.place.results))
            if written[0].stat().st_size > self.limits.size:
                self.notes.append(f"{_RECORDS} is larger than may travel: take records out of it")
        for run in self._runs():
            files = self.limits.files - len(written) - len(others)
            size = self.limits.total - sum(path.stat().st_size for path in (*written, *others))
            try:
                with run.owned():
                    written += self._packed_run(run, place, min(size, files * self.limits.size))
            except BusyError:
                self.notes.append(f"{run.path} is not packed: another process trains it")
        return written

    def _packed_run(self, run: RunFolder, place: Path, room: int) -> list[Path]:
        """Packs a run into as many files as it takes; none if it takes more than so many bytes."""
        files, name = list(_files_of(run)), run.path.relative_to(self.place.runs)
        # Weights shrink by a tenth at best: what is much larger need not be tried.
        if sum(path.stat().st_size for path in files if path.suffix == ".safetensors") < 1.2 * room:
            archive = _archive(place / "run", files, self.place.runs)
            if archive.stat().st_size <= room:
                digest = hashlib.blake2b(str(name).encode(), digest_size=4).hexdigest()
                return _cut(archive, digest, self.limits.size)
            archive.unlink()
        self.notes.append(f"{name} is not packed: it is too large for the {max(0, room):,} bytes that are left")
        return []

    def _records(self) -> Iterator[Path]:
        return self.place.results.glob("*/*.json")

    def _runs(self) -> list[RunFolder]:
        """Lists unfinished runs, the furthest advanced first."""
        found = [RunFolder(path.parent) for path in sorted(self.place.runs.glob("*/*/recipe.json"))]
        return sorted(filter(saved_step, found), key=lambda run: (-_share(run), -saved_step(run)))


def _share(run: RunFolder) -> float:
    """Tells how far a run is: its epochs over all that it will have."""
    try:
        tests = (line.epoch for line in run.lines(lenient=True) if isinstance(line, EvaluationLine))
        return max(tests, default=0) / max(1, run.origin().recipe.epochs)
    except ThinpipeError:
        return 0.0


def _put(came: RunFolder, there: RunFolder) -> None:
    """Puts a run in its place, unless one is there that is as far, or that another process trains."""
    if saved_step(there) >= saved_step(came):
        return
    try:
        with there.owned():
            for old in (there.path / name for name in (*_FILES, "states")):
                shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
            # The file that says that there is a run comes last.
            for path in sorted(came.path.iterdir(), key=lambda path: path.name == _FILES[0]):
                path.replace(there.path / path.name)
    except BusyError:
        return


def _files_of(run: RunFolder) -> Iterator[Path]:
    """Lists what somebody needs to go on with a run: of its states the last one alone."""
    yield from filter(Path.exists, (run.path / name for name in _FILES))
    state = latest(run.states)
    assert state is not None
    yield from (path for path in sorted(state.rglob("*")) if path.is_file())
    yield run.states / _POINTER
    memories = run.states / _MEMORIES / f"step-{step_of(state):08d}"
    yield from (path for path in sorted(memories.rglob("*")) if path.is_file())


def _archive(target: Path, files: Iterable[Path], root: Path) -> Path:
    """Writes files into an archive, without owners and times: nobody needs to know where it was made."""
    with tarfile.open(target, "w:gz", compresslevel=6) as archive:
        for path in files:
            member = tarfile.TarInfo(path.relative_to(root).as_posix())
            member.size = path.stat().st_size
            with path.open("rb") as source:
                archive.addfile(member, source)
    return target


def _cut(archive: Path, name: str, size: int) -> list[Path]:
    """Cuts a file into pieces that may travel, with names that say how many they are."""
    count = -(-archive.stat().st_size // size)
    pieces = [archive.with_name(f"run-{name}.{number}-of-{count}.tar.gz") for number in range(1, count + 1)]
    with archive.open("rb") as source:
        for piece in pieces:
            piece.write_bytes(source.read(size))
    archive.unlink()
    return pieces


class _Bounded(io.BufferedIOBase):
    """What an archive unpacks to, up to so many bytes: names of files, too, may be made very long.

    Args:
        source: unpacks it.
        most: bytes.
    """

    def __init__(self, source: gzip.GzipFile, most: int) -> None:
        self._source, self._left = source, most

    def read(self, size: int | None = -1, /) -> bytes:
        """Unpacks some bytes."""
        found = self._source.read(size)
        self._left -= len(found)
        if self._left < 0:
            raise TravelError("it unpacks to more than a run or records would")
        return found


def _joined(pieces: list[Path]) -> io.BytesIO:
    return io.BytesIO(b"".join(piece.read_bytes() for piece in pieces))


def _runs_in(folder: Path) -> list[list[Path]]:
    """Lists the runs of a folder, each as its pieces; one that lacks a piece is left out."""
    found: dict[tuple[str, int], dict[int, Path]] = {}
    for path in sorted(folder.glob("run-*")):
        if match := _RUN.fullmatch(path.name):
            found.setdefault((match[1], int(match[3])), {})[int(match[2])] = path
    return [
        [pieces[number] for number in range(1, count + 1)]
        for (_, count), pieces in found.items()
        if pieces.keys() == set(range(1, count + 1))
    ]


def _ours(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.tar.gz") if path.name == _RECORDS or _RUN.fullmatch(path.name)]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
