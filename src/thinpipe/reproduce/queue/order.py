"""What is to be run, and in which order: read from a file that people edit, ``order.toml``."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from thinpipe.errors import ThinpipeError
from thinpipe.reproduce.training.table import Row, Table
from thinpipe.reproduce.training.tables import TABLES
from thinpipe.suggest import instead_of

ORDER = Path(__file__).with_name("order.toml")
"""The list that is used where nobody names another."""

_MINUTES = 3.0
_TRAINED, _MEASURED = {"table", "rows", "seeds"}, {"command", "record", "minutes"}


class OrderError(ThinpipeError, ValueError):
    """A list that names what there is not."""


@dataclass(frozen=True, eq=False)
class Training:
    """A row that is trained with a seed.

    Args:
        table: that the row is of.
        row: which.
        seed: of all that is drawn.
    """

    table: Table
    row: Row
    seed: int

    @property
    def job(self) -> str:
        """The name of its record and of its run, without the table."""
        return f"{self.row.name}-seed{self.seed}"

    def __str__(self) -> str:
        return f"{self.table.name} {self.job}"


@dataclass(frozen=True)
class Measurement:
    """A command that is no training, and has the machine to itself.

    Args:
        words: of the command line, without the program's name.
        record: the file that it leaves, in the folder of records.
        minutes: that it may take.
    """

    words: tuple[str, ...]
    record: PurePosixPath
    minutes: float

    def __str__(self) -> str:
        return shlex.join(self.words)


Item: TypeAlias = Training | Measurement
"""One thing to run."""


def read_order(path: Path = ORDER) -> list[Item]:
    """Reads a list; what it names twice is in it once, where it is named first.

    Raises:
        OrderError: it cannot be read, or names a table or rows that there are not.
    """
    try:
        runs = tomllib.loads(path.read_text(encoding="utf-8")).get("run", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OrderError(f"{path} cannot be read as a list of what to run: {reason}; see {ORDER}") from error
    found: dict[str, Item] = {}
    for number, entry in enumerate(runs, 1):
        try:
            for item in _items(entry):
                found.setdefault(str(item), item)
        except OrderError as error:
            raise OrderError(f"{path}, entry {number}: {error}") from error
    return list(found.values())


def _items(entry: Mapping[str, Any]) -> Iterator[Item]:
    kind = _MEASURED if "command" in entry else _TRAINED
    for name in entry:
        if name not in kind:
            raise OrderError(f"it has no {name!r:.40}; {instead_of(name, kind)}")
    if kind is _MEASURED:
        yield _measurement(entry)
    else:
        yield from _trainings(entry)


def _measurement(entry: Mapping[str, Any]) -> Measurement:
    record, minutes = PurePosixPath(str(entry.get("record", ""))), entry.get("minutes", _MINUTES)
    if record.suffix != ".json" or record.is_absolute() or ".." in record.parts:
        raise OrderError(
            f"record is the file that the command leaves, as unet-speed/baseline.json; got {str(record)!r}"
        )
    if not isinstance(minutes, int | float) or minutes <= 0:
        raise OrderError(f"minutes are a number above 0, got {minutes!r:.40}")
    return Measurement(tuple(shlex.split(entry["command"])), record, float(minutes))


def _trainings(entry: Mapping[str, Any]) -> Iterator[Training]:
    name, seeds, patterns = entry.get("table"), entry.get("seeds", [0]), entry.get("rows", ["*"])
    if name not in TABLES:
        raise OrderError(f"there is no table {name!r:.60}; {instead_of(str(name), TABLES)}")
    if not all(isinstance(seed, int) and seed >= 0 for seed in seeds):
        raise OrderError(f"seeds are whole numbers, as [0, 1, 2]; got {seeds}")
    rows = _rows(TABLES[name], patterns)
    for seed in seeds:
        for row in rows:
            yield Training(TABLES[name], row, seed)


def _rows(table: Table, patterns: Sequence[str]) -> list[Row]:
    """Finds the rows that match, those of the first pattern first."""
    found: dict[str, Row] = {}
    for pattern in patterns:
        matching = [row for row in table.rows if fnmatchcase(row.name, pattern)]
        if not matching:
            names = ", ".join(row.name for row in table.rows)
            raise OrderError(f"no row of {table.name} matches {pattern!r:.60}; there are {names}")
        for row in matching:
            found.setdefault(row.name, row)
    return list(found.values())
