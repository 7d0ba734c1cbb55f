"""Trains rows one after the other, all of them with the first seed first; what is recorded is not trained again.

::

    runs/sortquant-cifar10/sort6+2-seed0/      log and states, to go on from if it is interrupted
    results/sortquant-cifar10/sort6+2-seed0.json      as soon as it is done; the states are deleted then
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from thinpipe.bench.record import Machine, Record
from thinpipe.errors import ThinpipeError
from thinpipe.reproduce.training.ask import Job
from thinpipe.reproduce.training.crossed import Crossed
from thinpipe.reproduce.training.figures import CROSSED, Ran
from thinpipe.reproduce.training.table import Row
from thinpipe.reproduce.training.tables import TABLES
from thinpipe.train.data import Data
from thinpipe.train.in_process import InProcess
from thinpipe.train.log import Origin, RunFolder
from thinpipe.train.loop import Loop, Watcher
from thinpipe.train.parts import data as data_of
from thinpipe.train.parts import loss
from thinpipe.train.progress import Several, watching
from thinpipe.train.recipe import Recipe
from thinpipe.train.stop import Stop
from thinpipe.train.trainer import Trainer
from thinpipe.train.ways import trainer_of

PATIENCE = "finishing the step; again to stop at once"
_AGAIN = "choose another --output, or replace it with --again"


class RowError(ThinpipeError, RuntimeError):
    """A row that cannot be trained, or was trained otherwise; those before it are recorded."""


class Shelf:
    """The samples that were loaded last: rows differ in codecs and bottlenecks, and rarely in their data."""

    def __init__(self) -> None:
        self._held: tuple[Recipe, Data] | None = None

    def samples(self, recipe: Recipe, device: str) -> Data:
        """Finds or loads the samples of a recipe.

        Raises:
            ThinpipeError: they are not to be found.
            ImportError: they need a package that is not installed.
        """
        uncut = replace(recipe, cut="", bottleneck="none", bottleneck_fit=0)
        if self._held is None or self._held[0] != uncut:
            self._held = None  # before others are loaded: there may be no room for both
            self._held = (uncut, data_of(recipe, device))
        return self._held[1]


def trained(job: Job, samples: Data, folder: RunFolder, stop: Stop, console: Console) -> bool:
    """Trains a row to its end, from where it was interrupted if it was.

    Returns:
        Whether it came to the end; else somebody wanted to stop, and a state is saved.

    Raises:
        RowError: the folder has a run of something else, or the device has not enough memory.
        BusyError: another process trains in the folder.
    """
    recipe, origin = job.recipe, origin_of(job, folder)
    for note in samples.notes:
        console.print(f"warning: {note}", markup=False, soft_wrap=True)
    try:
        with folder.owned():
            trainer = trainer_of(
                recipe, job.settings, data=samples, folder=folder.states, stop=stop, here=None, trace=None
            )
            assert isinstance(trainer, InProcess)
            folder.begin(origin)
            if not trainer.committed:
                # Of a run that was killed before it had saved a state.
                (folder.path / CROSSED).unlink(missing_ok=True)
            crossed = Crossed(folder.path / CROSSED, trainer.traffic)
            done = looped(recipe, trainer, samples, folder, stop, console, crossed)
            crossed.write()
            return done
    except torch.OutOfMemoryError as error:
        raise RowError(f"{job.settings.device} has not enough memory for it: {error}") from error


def looped(
    recipe: Recipe,
    trainer: Trainer,
    samples: Data,
    folder: RunFolder,
    stop: Stop,
    console: Console,
    *watchers: Watcher,
) -> bool:
    """Trains from where a trainer is, with progress on a console and a log in the run's folder.

    Returns:
        Whether it came to the end; else somebody wanted to stop, and a state is saved.
    """
    with watching(
        console,
        epochs=recipe.epochs,
        total=recipe.epochs * samples.steps_per_epoch,
        done=trainer.committed,
        notice=lambda: PATIENCE if stop.wanted else "",
    ) as watcher:
        loop = Loop(
            recipe=recipe,
            data=samples,
            loss_fn=loss,
            log=folder.log(trainer.committed),
            watcher=Several([watcher, *watchers]),
            stopped=lambda: stop.wanted,
        )
        return loop.run(trainer)


def origin_of(job: Job, folder: RunFolder) -> Origin:
    """Says what a run is made from; one that goes on keeps its beginning, wherever data and devices are by now.

    Raises:
        RowError: the folder has a run of something else.
    """
    origin = Origin.now(job.recipe, job.settings)
    if not folder.exists:
        return origin
    before = folder.origin()
    difference = _difference(_fixed(before), _fixed(origin))
    if difference is not None:
        raise RowError(f"{folder.path} was begun with {difference}; {_AGAIN}")
    return replace(origin, command=before.command, started=before.started)


def _fixed(origin: Origin) -> dict[str, Any]:
    settings = origin.settings.to_json()
    return {**origin.recipe.numbers(), **{name: settings[name] for name in ("stages", "codec", "grad_codec")}}


def record_of(job: Job, path: Path) -> Record:
    """Makes the record of a row that was trained to its end in a folder."""
    ran = Ran.read(path)
    return Record(
        job.table.name,
        ran.results(),
        ran.samples(),
        {
            "row": job.row.name,
            "what": job.row.work.label,
            "series": job.row.series,
            "measure": job.row.work.measure,
            "stand_in": job.stand_in(),
            "device": job.settings.device,
            "compiled": bool(job.settings.compile),
            **job.identity(),
        },
        Machine.current(*(("transformers",) if job.is_text else ())),
        row=job.name,
        published=figures_of(job.row),
        notes=ran.notes(),
    )


def figures_of(row: Row) -> dict[str, float | None]:
    """Says Epipe's figures of a row by the names of our results."""
    theirs, measure = row.published, row.work.measure
    if theirs.value is None and theirs.ratio is None:
        return {}
    return {measure: theirs.value, f"{measure}_deviation": theirs.deviation, "ratio": theirs.ratio}


def recorded(job: Job, folder: Path) -> Record | None:
    """Finds the record of a row, or that of another table's row which is the same, and makes it this one's, too.

    Raises:
        RowError: the row was recorded with other settings, and would be lost.
        RecipeError: the encoder is not there.
    """
    path, now = folder / job.table.name / f"{job.name}.json", job.identity()
    if path.exists():
        record = Record.load(path)
        difference = _difference(_settings(record), now)
        if difference is not None:
            raise RowError(f"{path} was recorded with {difference}; {_AGAIN}")
        return record
    for twin in filter(Path.exists, _twins(job, folder)):
        record = Record.load(twin)
        if _difference(_settings(record), now) is None:
            own = {"row": job.row.name, "what": job.row.work.label, "series": job.row.series}
            record = replace(
                record,
                bench=job.table.name,
                row=job.name,
                settings=record.settings | own,
                published=figures_of(job.row),
            )
            record.save(folder)
            return record
    return None


def _settings(record: Record) -> dict[str, Any]:
    """Reads a record's settings, with defaults for fields that recipes did not have when it was made."""
    known = {each.name: each.default for each in fields(Recipe) if each.default is not MISSING}
    return record.settings | {"recipe": known | record.settings["recipe"]}


def _twins(job: Job, folder: Path) -> Iterator[Path]:
    """Lists the files of other tables' rows that train the same with the same codecs and bottlenecks."""
    own = job.row
    for table in TABLES.values():
        for row in table.cut_at((own.cut,)):
            alike = (row.work.recipe, row.both, row.learned) == (own.work.recipe, own.both, own.learned)
            if alike and table is not job.table:
                yield folder / table.name / f"{row.name}-seed{job.seed}.json"


def forget_states(folder: RunFolder) -> None:
    """Deletes what a run could go on from; its log stays."""
    shutil.rmtree(folder.states, ignore_errors=True)


def _difference(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> str | None:
    """Says the first thing in which two lists of settings differ."""
    for name, value in now.items():
        was = before.get(name)
        if isinstance(value, Mapping) and isinstance(was, Mapping):
            found = _difference(was, value, f"{name}.")
            if found is not None:
                return found
        elif was != value:
            return f"{within}{name}={was}, and it is {value} now"
    return None
