"""The folder that a run leaves behind.

::

    runs/digits-20260731-142501/
      recipe.json     the resolved recipe, the settings, and the command that made it
      log.jsonl       a line for each step, each evaluation, and what else a reader must know
      summary.json    when it is finished
      states/         what it can be resumed from

A process may be killed at any byte of the log. Whoever goes on drops what was said of steps that will be taken again,
so that each step is in it once.
"""

from __future__ import annotations

import errno
import logging
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import thinpipe
from thinpipe.checkpoint.disk import FolderLock, replace, until_written
from thinpipe.errors import FolderError, ThinpipeError
from thinpipe.finite import dumps, loads
from thinpipe.train.recipe import Recipe
from thinpipe.train.settings import Settings

_log = logging.getLogger("thinpipe")
_RECIPE, _LOG, _SUMMARY, _STATES = "recipe.json", "log.jsonl", "summary.json", "states"


class RunError(ThinpipeError, RuntimeError):
    """A folder that has no run, has one already, or has one of another recipe."""


class BusyError(RunError):
    """A folder that another process trains in."""


@dataclass(frozen=True, kw_only=True)
class StepLine:
    """What is logged of a step.

    Args:
        step: its number, from 0 over all epochs.
        epoch: the one that it is in, from 0.
        rows: of its batch.
        loss: of its batch, before the step.
        seconds: that it took.
        lr: the learning rate that it was taken with; None in logs of the first version.
        grad_norm: of all gradients together, before any clipping; None where nobody has all of them.
        cost: what it cost in bytes and time, as the client counted it; empty where nothing crossed a network.
    """

    step: int
    epoch: int
    rows: int
    loss: float
    seconds: float
    lr: float | None = None
    grad_norm: float | None = None
    cost: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EvaluationLine:
    """What is logged of an evaluation.

    Args:
        step: how many steps were taken before it.
        epoch: how many epochs were finished before it.
        rows: of the test set.
        loss: the mean over all rows.
        accuracy: the share of rows that were told right.
        seconds: that it took.
        mcc: Matthews' correlation of what was told and what was right, over all rows; None where nobody asks for it.
    """

    step: int
    epoch: int
    rows: int
    loss: float
    accuracy: float
    seconds: float
    mcc: float | None = None


@dataclass(frozen=True, kw_only=True)
class NoteLine:
    """What a reader of a run must know: that images are damaged, say, or why it stopped.

    Args:
        step: how many steps were taken before it.
        text: a sentence without its full stop.
    """

    step: int
    text: str


Line = StepLine | EvaluationLine | NoteLine
_KINDS: dict[str, type[Line]] = {"step": StepLine, "evaluation": EvaluationLine, "note": NoteLine}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a run was made from.

    Args:
        recipe: resolved.
        settings: resolved.
        command: the line that began it.
        started: when, in UTC.
        versions: of the libraries.
        machine: that it was begun on; empty in runs of the first version.
    """

    recipe: Recipe
    settings: Settings
    command: str
    started: str
    versions: dict[str, str]
    machine: str = ""

    @classmethod
    def now(cls, recipe: Recipe, settings: Settings) -> Origin:
        """Describes a run that this process begins."""
        return cls(
            recipe=recipe,
            settings=settings,
            command=shlex.join(["thinpipe", *sys.argv[1:]]),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={"thinpipe": thinpipe.__version__, "torch": torch.__version__},
            machine=_machine(settings.device),
        )


class RunFolder:
    """The folder of a run.

    Args:
        path: where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def states(self) -> Path:
        """Where states are saved."""
        return self.path / _STATES

    @property
    def log_path(self) -> Path:
        """The file of the log."""
        return self.path / _LOG

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / _RECIPE).exists()

    @classmethod
    def fresh(cls, name: str, parent: Path = Path("runs")) -> RunFolder:
        """Finds a folder for a new run of a recipe."""
        stem = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
        names = [stem, *(f"{stem}-{again}" for again in range(2, 1000))]
        return cls(next(parent / each for each in names if not (parent / each).exists()))

    @classmethod
    def newest(cls, name: str, parent: Path = Path("runs")) -> RunFolder:
        """Finds the run of a recipe that was begun last.

        Raises:
            RunError: there is none.
        """
        found = [cls(path) for path in sorted(parent.glob(f"{name}-*")) if (path / _RECIPE).exists()]
        if not found:
            raise RunError(f"{parent} has no run of {name}; say which one to resume: --run DIR")
        return max(found, key=lambda each: each.origin().started)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Makes the folder, and keeps others from training in it; one that is empty after an error is taken away again.

        Raises:
            RunError: it cannot be made.
            BusyError: another process trains in it.
        """
        try:
            lock = FolderLock(self.path, "wait for it, or choose another folder: --run DIR")
        except FolderError as error:
            raise (BusyError if error.is_busy else RunError)(str(error)) from error
        try:
            yield
        except BaseException:
            lock.release()
            with suppress(OSError):
                self.path.rmdir()
            raise
        finally:
            lock.release()

    def begin(self, origin: Origin) -> None:
        """Writes what the run is made from.

        Raises:
            RunError: it cannot be written.
        """
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            _write(self.path / _RECIPE, {**asdict(origin), "recipe": origin.recipe.to_json()})

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror}; choose another: --run DIR") from error

    def origin(self) -> Origin:
        """Reads what the run was made from.

        Raises:
            RunError: there is no run, or it is damaged.
        """
        path = self.path / _RECIPE
        try:
            value = loads(path.read_text(encoding="utf-8"))
            return Origin(
                recipe=Recipe.from_json(value["recipe"]),
                settings=Settings.from_json(value["settings"]),
                command=str(value["command"]),
                started=str(value["started"]),
                versions=dict(value["versions"]),
                machine=str(value.get("machine", "")),
            )
        except FileNotFoundError as error:
            raise RunError(f"{self.path} has no run; it would have a {_RECIPE}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path} cannot be read: {error}; bring it back from a copy, or begin another run with another --run"
            ) from error

    def lines(self, *, lenient: bool = False) -> Iterator[Line]:
        """Reads the log; a last line that was cut short is left out.

        Args:
            lenient: whether other lines that are damaged are left out as well, with a warning (default: no).

        Raises:
            RunError: another line is damaged.
        """
        path = self.path / _LOG
        if not path.exists():
            return
        text = path.read_text(encoding="utf-8", errors="replace")
        *whole, _ = text.split("\n")
        for number, each in enumerate(whole, 1):
            try:
                value = loads(each)
                line = _KINDS[value.pop("kind")](**value)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                text = f"line {number} of {path} is damaged: {each!r:.80}"
                if not lenient:
                    raise RunError(f"{text}; the run can be resumed without it: --resume") from error
                _log.warning("%s; it is left out", text)
                continue
            yield line

    def finish(self, summary: dict[str, Any]) -> None:
        """Writes the summary, as soon as there is room for it."""
        until_written(_SUMMARY, lambda: _write(self.path / _SUMMARY, summary))

    def log(self, committed: int) -> Log:
        """Opens the log, to go on after so many steps."""
        return Log(self, committed)


class Log:
    """The log of a run, to which lines are added.

    Args:
        folder: of the run.
        committed: how many steps the run has; what was said of later ones is dropped.
    """

    def __init__(self, folder: RunFolder, committed: int) -> None:
        self._folder, self._path = folder, folder.path / _LOG
        self._last: StepLine | EvaluationLine | None = None
        self._notes: set[str] = set()
        self._drop_after(committed)

    @property
    def evaluated(self) -> bool:
        """Whether the last line is of an evaluation: none is due before another step."""
        return isinstance(self._last, EvaluationLine)

    def rewind(self, committed: int) -> None:
        """Drops the lines of steps that will be taken again, if there are any."""
        if self._last is not None and _steps(self._last) > committed:
            self._drop_after(committed)

    def add(self, line: Line) -> None:
        """Writes a line, as soon as there is room for it."""
        text = _text(line).encode()
        until_written(f"a line of {_LOG}", lambda: self._append(text))
        if isinstance(line, NoteLine):
            self._notes.add(line.text)
        else:
            self._last = line

    def note(self, step: int, text: str) -> None:
        """Writes a note, unless the log has the same one already, as that of a run that is resumed has.

        Args:
            step: how many steps were taken.
            text: what a reader must know.
        """
        if text not in self._notes:
            self.add(NoteLine(step=step, text=text))

    def _append(self, text: bytes) -> None:
        with self._path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                # A full disk may take a part of it.
                if file.write(text) < len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(end)
                raise

    def _drop_after(self, committed: int) -> None:
        lines = [line for line in self._folder.lines(lenient=True) if _steps(line) <= committed]
        text = "".join(map(_text, lines))
        until_written(_LOG, lambda: replace(self._path, text))
        self._notes = {line.text for line in lines if isinstance(line, NoteLine)}
        self._last = next((line for line in reversed(lines) if not isinstance(line, NoteLine)), None)


def _machine(device: str) -> str:
    system = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    gpu = device.startswith("cuda") and torch.cuda.is_available()
    return f"{system}, {torch.cuda.get_device_name(device)}" if gpu else system


def _text(line: Line) -> str:
    kind = next(name for name, each in _KINDS.items() if isinstance(line, each))
    said = {name: value for name, value in asdict(line).items() if value is not None}
    return dumps({"kind": kind, **said}) + "\n"


def _steps(line: Line) -> int:
    """Tells how many steps were taken when a line was written."""
    return line.step + 1 if isinstance(line, StepLine) else line.step


def _write(path: Path, value: dict[str, Any]) -> None:
    replace(path, dumps(value, indent=2) + "\n")
