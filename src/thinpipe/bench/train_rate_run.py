"""Trains the rows of ``thinpipe bench train`` one after the other, each as ``thinpipe train`` would, and times them."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from thinpipe.bench.devices import gpus, release
from thinpipe.bench.memory import peaks
from thinpipe.bench.naming import environment
from thinpipe.bench.record import Machine, Record, without_folders
from thinpipe.bench.sheet import ratio
from thinpipe.bench.train_rate import BENCH, ONE_DEVICE, Plan, Row
from thinpipe.errors import ThinpipeError
from thinpipe.reproduce.training.ask import encoder_stand_in, reads_texts
from thinpipe.reproduce.training.crossed import Crossed
from thinpipe.reproduce.training.figures import CROSSED, Ran
from thinpipe.reproduce.training.run import PATIENCE, RowError
from thinpipe.reproduce.training.tables import TABLES
from thinpipe.train.data import Data
from thinpipe.train.files import TINY
from thinpipe.train.in_process import InProcess
from thinpipe.train.log import Origin, RunFolder
from thinpipe.train.loop import Loop, Watcher
from thinpipe.train.parts import data as data_of
from thinpipe.train.parts import loss
from thinpipe.train.progress import Several, watching
from thinpipe.train.recipe import Recipe
from thinpipe.train.stop import Stop
from thinpipe.train.ways import trainer_of

_RATE, _STEADY = "samples_per_second", "samples_per_second_steady"


@dataclass(frozen=True)
class Timed:
    """A row that was trained to its end.

    Args:
        ran: what its run left behind.
        seconds: on the wall, from the building of the model to the last saved state, tests included.
        memory: the allocator's peaks, by the names of the results.
    """

    ran: Ran
    seconds: float
    memory: dict[str, float | None]

    def results(self) -> dict[str, float | None]:
        """Lists what people quote."""
        _, *later = self.rates()
        trained = sum(line.rows for line in self.ran.steps)
        return {
            **self.ran.results(),
            _STEADY: statistics.median(later) if later else None,
            "samples_per_second_with_tests": trained / self.seconds,
            "wall_seconds": self.seconds,
            **self.memory,
        }

    def samples(self) -> dict[str, list[float]]:
        """Lists the curves by epoch."""
        return {**self.ran.samples(), "rate": self.rates()}

    def rates(self) -> list[float]:
        """Tells the samples a second of each epoch, over the seconds of its steps."""
        return [self.ran.train_rows / seconds for seconds in self.ran.samples()["seconds"]]


def measured(plan: Plan, stop: Stop, console: Console) -> Iterator[Record]:
    """Trains row after row, and gives the record of each as soon as there is one; ends early if somebody wants to stop.

    Args:
        plan: what to train.
        stop: asked between two steps.
        console: where progress is shown.

    Raises:
        ThinpipeError: the samples are not to be found, or a row failed.
        ImportError: the samples need a package that is not installed.
    """
    samples = data_of(plan.recipe, plan.device)
    for note in samples.notes:
        console.print(f"warning: {note}", markup=False, soft_wrap=True)
    alone: Record | None = None
    for number, row in enumerate(plan.rows, 1):
        console.print(f"{plan.recipe.name} {row.name}, {number} of {len(plan.rows)}", soft_wrap=True, markup=False)
        with tempfile.TemporaryDirectory(prefix="thinpipe-") as place:
            timed = train_row(plan, row, samples, Path(place), stop, console)
        if timed is None:
            console.print(f"stopped; {row.name} is not measured", markup=False)
            return
        record = record_of(plan, row, timed, alone)
        if row.name == ONE_DEVICE:
            alone = record
        yield record


def train_row(plan: Plan, row: Row, samples: Data, place: Path, stop: Stop, console: Console) -> Timed | None:
    """Trains a row to its end.

    Args:
        plan: that it is of.
        row: which.
        samples: of the recipe, on the plan's device.
        place: the folder that its run gets.
        stop: asked between two steps.
        console: where progress is shown.

    Returns:
        What came of it; None if somebody wanted to stop.

    Raises:
        RowError: it cannot be trained, or the device has not enough memory.
    """
    devices = [torch.device(plan.device)]
    release(devices)
    for gpu in gpus(devices):
        torch.cuda.reset_peak_memory_stats(gpu)
    began = time.perf_counter()
    try:
        done = _trained(plan, row, samples, RunFolder(place), stop, console)
    except torch.OutOfMemoryError as error:
        raise RowError(f"row {row.name}: {plan.device} has not enough memory for it: {error}") from error
    except ThinpipeError as error:
        raise RowError(f"row {row.name}: {error}") from error
    seconds = time.perf_counter() - began
    return Timed(Ran.read(place), seconds, peaks(devices)) if done else None


def _trained(plan: Plan, row: Row, samples: Data, folder: RunFolder, stop: Stop, console: Console) -> bool:
    recipe, settings = plan.recipe, plan.settings(row)
    trainer = trainer_of(recipe, settings, data=samples, folder=folder.states, stop=stop, here=None, trace=None)
    try:
        folder.begin(Origin.now(recipe, settings))
        with watching(
            console,
            epochs=recipe.epochs,
            total=recipe.epochs * samples.steps_per_epoch,
            done=0,
            notice=lambda: PATIENCE if stop.wanted else "",
        ) as shown:
            watchers: list[Watcher] = [shown]
            if isinstance(trainer, InProcess):
                watchers.append(Crossed(folder.path / CROSSED, trainer.traffic))
            loop = Loop(
                recipe=recipe,
                data=samples,
                loss_fn=loss,
                log=folder.log(0),
                watcher=Several(watchers),
                stopped=lambda: stop.wanted,
            )
            return loop.run(trainer)
    finally:
        trainer.close()


def record_of(plan: Plan, row: Row, timed: Timed, alone: Record | None) -> Record:
    """Makes the record of a row.

    Args:
        plan: that it is of.
        row: which.
        timed: what came of it.
        alone: the record of one device, from the same command; None if this is that row, or there is none.
    """
    recipe, results = plan.recipe, timed.results()
    against = results if row.name == ONE_DEVICE else {} if alone is None else alone.results
    compared = {
        "of_one_device": ratio(results[_RATE], against.get(_RATE)),
        "of_one_device_steady": ratio(results[_STEADY], against.get(_STEADY)),
    }
    settings = plan.settings(row)
    return Record(
        BENCH,
        {**compared, **results},
        timed.samples(),
        {
            "row": row.name,
            "way": str(settings.way),
            "codec": row.codec,
            "device": plan.device,
            "threads": torch.get_num_threads(),
            "tiny": plan.tiny,
            # Where encoders lie is no part of what is trained.
            "recipe": without_folders(recipe.numbers()),
            "settings": settings.to_json(),
            "environment": environment(),
        },
        Machine.current(*(("transformers",) if reads_texts(recipe.name) else ())),
        row=f"{recipe.name}-{row.file}",
        notes=[*timed.ran.notes(), *_other_model(recipe), *_other_data(plan, timed.ran)],
    )


def _other_model(recipe: Recipe) -> Iterator[str]:
    """Says what stands in for a pretrained encoder."""
    told = encoder_stand_in(recipe) if reads_texts(recipe.name) and recipe.model != TINY else None
    if told is not None:
        yield told


def _other_data(plan: Plan, ran: Ran) -> Iterator[str]:
    """Says that the samples are not those of the published set, whose accuracies are then others'."""
    works = (work for table in TABLES.values() for work in table.works)
    work = next((work for work in works if work.recipe == plan.recipe.name), None)
    found = ran.train_rows, ran.tests[-1].rows
    if work is not None and found != work.samples:
        yield (
            f"{found[0]:,} samples to train on and {found[1]:,} to test with, where the published set has "
            f"{work.samples[0]:,} and {work.samples[1]:,}: compare rows with each other, and no accuracy with others"
        )
