"""What stands under a table: which rows are missing, how the others were trained, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from thinpipe.bench.page import runs_of
from thinpipe.bench.record import Record
from thinpipe.reproduce.training.rows import Shown
from thinpipe.reproduce.training.sheet import notes_below
from thinpipe.reproduce.training.table import Table
from thinpipe.train import resolved

_LOSSES = "Last loss: in training, the mean over the last epoch; it and its difference are no points."


def facts(table: Table, rows: Sequence[Shown]) -> Iterator[str]:
    """Lists what a reader of a table must know.

    Args:
        table: which.
        rows: those that are recorded.
    """
    yield _missing(table, rows)
    yield from _by_row(rows, _training)
    if rows[0].row.work.measure == "mcc":
        yield _LOSSES
    yield from notes_below(table, rows)
    yield from _by_row(rows, _versions)


def commands(rows: Sequence[Shown]) -> Iterator[str]:
    """Lists the commands that made the records, where they ran, and the rows of each."""
    runs = runs_of([record for each in rows for record in each.records])
    for run, records in runs.items():
        yield run if len(runs) == 1 else f"{run}: {', '.join(_made(rows, records))}"


def _made(rows: Sequence[Shown], records: Sequence[Record]) -> Iterator[str]:
    """Names rows, with the seeds where others of them are not among these records."""
    for each in rows:
        own = [record for record in each.records if record in records]
        if len(own) == len(each.records):
            yield each.row.name
        elif own:
            yield f"{each.row.name} (seed {', '.join(str(record.settings['seed']) for record in own)})"


def _missing(table: Table, rows: Sequence[Shown]) -> str:
    run = {each.row.name for each in rows}
    names = [row.name for row in table.rows]
    missing = [name for name in names if name not in run]
    others = sum(each.row.elsewhere is not None for each in rows)
    text = f"{len(names) - len(missing)} of {len(names)} rows have been run"
    text += f", and {others} with another cut" if others else ""
    return f"{text}; not run: {', '.join(missing)}." if missing else f"{text}."


def _by_row(rows: Sequence[Shown], say: Callable[[Shown, Record], str]) -> Iterator[str]:
    """Says something of every record; once, where it is the same of all, else with the rows that it is about."""
    about: dict[str, list[str]] = {}
    for each in rows:
        for record in each.records:
            about.setdefault(say(each, record), []).append(each.row.name)
    for text, names in about.items():
        whose = "All rows" if len(about) == 1 else ", ".join(dict.fromkeys(names))
        yield f"{whose}: {text}."


def _training(each: Shown, record: Record) -> str:
    results, recipe, work = record.results, record.settings["recipe"], each.row.work
    theirs = resolved(work.recipe, {**work.changes, "cut": each.row.cut})
    said = [
        _beside("epochs", recipe["epochs"], theirs.epochs),
        f"{results['train_rows']:,.0f} samples to train on, {results['test_rows']:,.0f} to test with",
        _beside("batch", recipe["batch"], theirs.batch),
        _beside("micro-batches", recipe["chunks"], theirs.chunks),
        f"{_optimizer(recipe)} at {_beside('lr', recipe['lr'], theirs.lr)}, {recipe['lr_schedule']}",
        recipe["precision"],
    ]
    said += ["compiled"] if record.settings.get("compiled") else []
    said += [f"images of {recipe['pixels']} pixels"] if recipe["pixels"] else []
    said += [f"texts of {recipe['max_length']} tokens, padding {recipe['padding']}"] if recipe["max_length"] else []
    said += [f"LoRA of rank {recipe['lora']}"] if recipe["lora"] else []
    said += [f"begun with {PurePath(recipe['weights']).name}"] if recipe["weights"] != "none" else []
    return "; ".join(said)


def _optimizer(recipe: Mapping[str, Any]) -> str:
    return f"sgd with momentum {recipe['momentum']:g}" if recipe["optimizer"] == "sgd" else str(recipe["optimizer"])


def _beside(name: str, ours: float, theirs: float) -> str:
    """Says a number, and Epipe's if it is another."""
    return f"{name} {ours:g}" + ("" if ours == theirs else f" (published: {theirs:g})")


def _versions(_: Shown, record: Record) -> str:
    machine = record.machine
    packages = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return f"Python {machine.python}, {packages}; trained on {record.settings['device']}"
