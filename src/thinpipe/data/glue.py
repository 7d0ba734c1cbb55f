"""RTE and CoLA in GLUE's own files, a row a line and tabs in between.

Quotation marks mean nothing in them: a reader of CSV takes one that opens a sentence for the start of a field, and
swallows the rows that follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from thinpipe.data.images import MAX_DAMAGED, names_text, verify_share
from thinpipe.data.locate import DamagedDataError, DataError, find
from thinpipe.data.texts import Texts, TextSet


@dataclass(frozen=True)
class Task:
    """How a task's rows read.

    Args:
        columns: their names, in the order that files without a header have.
        first: the column of the first text.
        second: the column of the second one; ``None`` where there is one text.
        classes: the names of the classes, in the order of their numbers, as everybody numbers them.
        rows: how many the published training and validation parts have.
    """

    columns: tuple[str, ...]
    first: str
    second: str | None
    classes: tuple[str, ...]
    rows: tuple[int, int]

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that a header has to name."""
        return (self.first, *((self.second,) if self.second else ()), "label")


TASKS = {
    "rte": Task(
        ("index", "sentence1", "sentence2", "label"),
        "sentence1",
        "sentence2",
        ("entailment", "not_entailment"),
        (2_490, 277),
    ),
    # The official files of CoLA have no header; copies of them often do.
    "cola": Task(
        ("source", "label", "mark", "sentence"), "sentence", None, ("unacceptable", "acceptable"), (8_551, 1_043)
    ),
}
"""The tasks that can be read, by name."""


def load_glue(task: str, data_dir: Path | None = None, *, max_damaged: float = MAX_DAMAGED) -> TextSet:
    """Loads a task: its training part, and its validation part to test with.

    Args:
        task: ``rte`` or ``cola``.
        data_dir: where to look. Default: where ``thinpipe.data.locate.places`` says.
        max_damaged: the largest share of the rows of a part that may have an empty text. Default: 0.01.

    Raises:
        DataError: it is not there, or there is no such task.
        DamagedDataError: a file is not one of that task, or too many of its texts are empty.
    """
    if task not in TASKS:
        raise DataError(f"there is no task {task!r:.40}; there are {', '.join(TASKS)}")
    folder = find(task, data_dir)
    parts, notes = [], []
    for name, published in zip(("train.tsv", "dev.tsv"), TASKS[task].rows, strict=True):
        texts = read_tsv(folder / name, task)
        parts.append(texts)
        if len(texts) != published:
            notes.append(f"{folder / name} has {len(texts):,} rows, and that of the published {task} {published:,}")
        if empty := texts.empty():
            said = f"{len(empty):,} of {len(texts):,} rows of {folder / name} have an empty text: "
            said += f"rows {names_text([row + 1 for row in empty])}"
            notes.append(verify_share(said, len(empty), len(texts), max_damaged))
    return TextSet(parts[0], parts[1], TASKS[task].classes, tuple(notes))


def read_tsv(path: Path, task: str) -> Texts:
    """Reads a file of a task, with or without a header.

    Args:
        path: the file.
        task: ``rte`` or ``cola``.

    Raises:
        DataError: the file is not there.
        DamagedDataError: a line has the wrong number of columns or an unknown label, or there are none.
    """
    rule = TASKS[task]
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing: unpack the archive of {task} again") from error
    except UnicodeDecodeError as error:
        raise DamagedDataError(f"{path} is no text in UTF-8 ({error.reason} at byte {error.start})") from error
    # Not splitlines(), which also breaks lines at characters that occur within sentences.
    lines = [line.removesuffix("\r").split("\t") for line in text.split("\n")]
    has_header = set(rule.needed) <= set(lines[0])
    header = lines[0] if has_header else list(rule.columns)
    places = [header.index(name) for name in rule.needed]
    rows: list[list[str]] = []
    labels: list[int] = []
    for number, cells in enumerate(lines[has_header:], 1 + has_header):
        if cells == [""]:
            continue
        if len(cells) != len(header):
            raise DamagedDataError(
                f"{path}, line {number}: {len(cells)} columns instead of {len(header)} ({', '.join(header)})"
            )
        *texts, label = (cells[place] for place in places)
        rows.append(texts)
        labels.append(_label(path, number, label, rule.classes))
    if not rows:
        raise DamagedDataError(f"{path} has no rows")
    first = tuple(texts[0] for texts in rows)
    second = tuple(texts[1] for texts in rows) if rule.second else None
    return Texts(first, second, torch.tensor(labels))


def _label(path: Path, number: int, label: str, classes: tuple[str, ...]) -> int:
    known = {name: place for place, name in enumerate(classes)} | {str(place): place for place in range(len(classes))}
    if label not in known:
        raise DamagedDataError(f"{path}, line {number}: the label {label!r:.40} is none of {', '.join(known)}")
    return known[label]
