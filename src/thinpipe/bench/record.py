"""What a benchmark leaves behind: its numbers, with all it takes to repeat them."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from thinpipe.checkpoint.disk import replace
from thinpipe.errors import ThinpipeError
from thinpipe.finite import dumps, loads


class RecordError(ThinpipeError, ValueError):
    """A file that should have a record, and has none."""


@dataclass(frozen=True)
class Machine:
    """The hardware and software of a run."""

    cpu: str
    cores: int
    gpus: list[str]
    python: str
    versions: dict[str, str]

    @classmethod
    def current(cls, *packages: str) -> Machine:
        """Describes this machine, with the versions of torch, thinpipe and the packages named."""
        return cls(
            cpu=_cpu_name(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            gpus=[torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())],
            python=platform.python_version(),
            versions={name: _version(name) for name in ("thinpipe", "torch", *packages)},
        )


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    if package in ("thinpipe", "torch"):  # which may run from a checkout, of which no installer knows
        return str(sys.modules[package].__version__)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        # It may run from a folder that somebody copied, which nobody has to take for its absence.
        return "not installed" if importlib.util.find_spec(package) is None else "of unknown version"


def _commit() -> str | None:
    """Names the commit that is run, where it is run from a checkout; with a plus if files differ from it.

    A copy without its history is told by the variable THINPIPE_COMMIT what it is a copy of.
    """
    if told := os.environ.get("THINPIPE_COMMIT"):
        return told
    git, here = shutil.which("git"), Path(__file__).parent
    if git is None:
        return None

    def ask(*words: str) -> str | None:
        done = subprocess.run([git, *words], cwd=here, capture_output=True, text=True, check=False)  # noqa: S603
        return done.stdout.strip() if done.returncode == 0 else None

    if not ask("ls-files", Path(__file__).name):  # a checkout of something else, or none
        return None
    commit = ask("rev-parse", "--short=12", "HEAD")
    return f"{commit}+" if commit and ask("status", "--porcelain", "--untracked-files=no", "..") else commit


def typed(words: Sequence[str], here: Path | None = None) -> str:
    """Writes a command line as a reader can type it: without the folders of the machine that it ran on.

    Args:
        words: of the command line, the program's name first.
        here: the folder it ran in (default: the current one). Paths below it are written relative to it, any other
            absolute path as its option in capitals: ``--data-dir DATA``, ``--set model=MODEL``.
    """
    here, before, written = here or Path.cwd(), "", []
    for word in words:
        name, equals, value = word.rpartition("=")
        option = name or (before if before.startswith("--") else "")
        written.append(f"{name}{equals}{_placeholder(Path(value), option, here)}" if _rooted(value) else word)
        before = word
    return shlex.join(written)


def without_folders(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Names files and folders among settings without saying where they lie on this machine."""
    return {name: Path(each).name if _rooted(each) else each for name, each in settings.items()}


def _rooted(value: object) -> bool:
    return isinstance(value, str) and Path(value).is_absolute()


def _placeholder(path: Path, option: str, here: Path) -> str:
    if path.is_relative_to(here):
        return path.relative_to(here).as_posix()
    return option.rpartition("=")[2].lstrip("-").removesuffix("-dir").upper() or path.name


@dataclass(frozen=True)
class Record:
    """One run of one benchmark, or of one row of it.

    Args:
        bench: its name.
        results: the numbers people quote, by name.
        samples: the raw times behind them, in seconds, by variant.
        settings: what was run.
        machine: where.
        row: the row of the table (default: the benchmark has none).
        published: figures that others printed for the same row, by the names of the results.
        notes: what a reader of the numbers must know.
        command: the command line that repeats it, as ``typed`` writes it.
        commit: the version of the code, where it is known.
    """

    bench: str
    results: dict[str, float | None]
    samples: dict[str, list[float]]
    settings: dict[str, Any]
    machine: Machine
    row: str = ""
    published: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    command: str = field(default_factory=lambda: typed(["thinpipe", *sys.argv[1:]]))
    commit: str | None = field(default_factory=_commit)

    def entries(self) -> dict[str, Any]:
        """Lists everything by name, the results at the top level."""
        entries = asdict(self)
        return {"bench": self.bench, **entries.pop("results"), **entries}

    def line(self) -> str:
        """Writes the record as one line of JSON."""
        return dumps(self.entries())

    @property
    def origin(self) -> str:
        """The code that was run, in words: its commit, and whether files differed from it."""
        if self.commit is None:
            return "at a commit that the record does not name"
        return f"at {self.commit.removesuffix('+')}" + (" with changes that no commit has" if self.is_dirty else "")

    @property
    def is_dirty(self) -> bool:
        """Whether files differed from the commit."""
        return self.commit is not None and self.commit.endswith("+")

    def path(self, folder: Path) -> Path:
        """Names the file of the record's row."""
        return folder / self.bench / f"{self.row}.json"

    def save(self, folder: Path) -> Path:
        """Writes the record to the file of its row, whole or not at all, and returns where that is."""
        path = self.path(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, dumps(self.entries(), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Record:
        """Reads what ``save`` wrote.

        Raises:
            RecordError: the file is something else, or a part of it.
        """
        try:
            entries = loads(path.read_text())
            known = {each.name: entries.pop(each.name) for each in fields(cls) if each.name in entries}
            known["machine"] = Machine(**known["machine"])
            return cls(results=entries, **known)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{path} is no record; copy it again, or delete it: {error!r}") from error
