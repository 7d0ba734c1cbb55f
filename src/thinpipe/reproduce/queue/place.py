"""Where a queue keeps things, how it trains, and what that says of each item: done, begun, to do, or not to be done."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from thinpipe.bench.record import Record
from thinpipe.checkpoint.folder import latest, step_of
from thinpipe.data.locate import SOURCES, DataError, find
from thinpipe.errors import ThinpipeError
from thinpipe.reproduce.queue.order import Item, Measurement, Training
from thinpipe.reproduce.training.ask import Ask, Job
from thinpipe.reproduce.training.made_up import write_texts
from thinpipe.reproduce.training.run import origin_of, recorded
from thinpipe.train.encoder import weight_files
from thinpipe.train.files import TINY, encoder_folder, weights_file
from thinpipe.train.log import BusyError, EvaluationLine, RunFolder
from thinpipe.train.recipe import RecipeError

_MISSING = (RecipeError, DataError, ImportError)
_MOMENTS = {"sgd": 1, "adamw": 2}
"""How many numbers an optimizer keeps for each weight, at most."""


class State(StrEnum):
    """What has become of an item."""

    DONE = "done"
    BEGUN = "begun"
    TO_DO = "to do"
    SKIPPED = "skipped"
    REFUSED = "refused"


@dataclass(frozen=True)
class Standing:
    """What is known of an item.

    Args:
        state: what has become of it.
        why: it is skipped or refused (default: it is not).
        epochs: how many it has in all (default: it has none).
        tested: how many of them are over (default: none).
        record: of what is done (default: it is not, or is no row of a table of trainings).
    """

    state: State
    why: str = ""
    epochs: int = 0
    tested: int = 0
    record: Record | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a queue keeps things, and how it trains.

    Args:
        results: the folder of records.
        runs: the folder of unfinished runs.
        how: data, device and the like, as for the command of a table; its rows and seeds are not looked at.
    """

    results: Path
    runs: Path
    how: Ask

    def prepare(self) -> None:
        """Makes what small work needs."""
        if self.how.tiny:
            write_texts(self._texts)

    @property
    def _texts(self) -> Path:
        return self.runs / "made-up-texts"

    def job(self, item: Training) -> Job:
        """Makes what is to be trained of a row."""
        return Job.of(item.table, item.row, item.seed, self.how, self._texts)

    def run(self, item: Training) -> RunFolder:
        """Tells where a row is trained."""
        return RunFolder(self.runs / item.table.name / item.job)

    def record(self, item: Item) -> Path:
        """Tells where an item is recorded."""
        if isinstance(item, Measurement):
            return self.results / item.record
        return self.results / item.table.name / f"{item.job}.json"

    def words(self, item: Item) -> list[str]:
        """Writes the command line of the process that does an item."""
        words = [sys.executable, "-m", "thinpipe"]
        if isinstance(item, Measurement):
            return [*words, *item.words, *(["--tiny"] if self.how.tiny else []), "--output", str(self.results)]
        how, is_text = self.how, self.job(item).is_text
        words += ["reproduce", item.table.name, "--rows", item.row.name, "--seeds", str(item.seed)]
        words += ["--cut", item.row.cut, "--device", how.device]
        words += ["--output", str(self.results), "--runs", str(self.runs)]
        for option, value in (("--epochs", how.epochs), ("--data-dir", how.data_dir)):
            words += [] if value is None else [option, str(value)]
        words += ["--encoder", str(how.encoder)] if how.encoder is not None and is_text else []
        return [*words, *(["--compile"] if how.compile else []), *(["--tiny"] if how.tiny else [])]

    def standing(self, item: Item) -> Standing:
        """Finds out what is known of an item."""
        if isinstance(item, Measurement):
            return Standing(State.DONE if self.record(item).exists() else State.TO_DO)
        try:
            job = self.job(item)
            job.stand_in()  # which looks for the encoder
            record, run = recorded(job, self.results), self.run(item)
            if record is not None:
                return Standing(State.DONE, record=record)
            self._verify_files(job)
            origin_of(job, run)
        except _MISSING as error:
            return Standing(State.SKIPPED, " ".join(str(error).split()))
        except ThinpipeError as error:
            return Standing(State.REFUSED, " ".join(str(error).split()))
        step, epochs = saved_step(run), job.recipe.epochs
        if not step:
            return Standing(State.TO_DO, epochs=epochs)
        lines = run.lines(lenient=True)
        tested = sum(isinstance(line, EvaluationLine) and line.step <= step for line in lines)
        return Standing(State.BEGUN, epochs=epochs, tested=tested)

    def _verify_files(self, job: Job) -> None:
        """Looks for what a row needs; whether it is whole is found out when it is loaded.

        Raises:
            ThinpipeError: a data set or a file is not there.
        """
        recipe = job.recipe
        if recipe.dataset in SOURCES:
            find(recipe.dataset, Path(recipe.data_dir) if recipe.data_dir else None)
        weights_file(recipe)

    def state_bytes(self, item: Training) -> int:
        """Tells how large a saved state of a row is, or will be by the files that it begins with."""
        found = latest(self.run(item).states)
        if found is not None:
            return sum(path.stat().st_size for path in found.rglob("*") if path.is_file())
        recipe = self.job(item).recipe
        if self.job(item).is_text:
            files = [] if recipe.model == TINY or recipe.lora else weight_files(encoder_folder(recipe))
        else:
            files = [file for file in [weights_file(recipe)] if file is not None]
        # A file may have the weights in 16 bits; a state has 32.
        return (1 + _MOMENTS.get(recipe.optimizer, max(_MOMENTS.values()))) * sum(file.stat().st_size for file in files)

    def is_busy(self, item: Training) -> bool:
        """Tells whether another process trains a row right now."""
        try:
            with self.run(item).owned():
                return False
        except BusyError:
            return True


def saved_step(run: RunFolder) -> int:
    """Tells after how many steps a run was saved last; 0 if it has no state."""
    try:
        found = latest(run.states)
    except (ThinpipeError, OSError):  # another process may be removing the one before
        return 0
    return 0 if found is None else step_of(found)


def seconds_per_epoch(records: Iterable[Record]) -> dict[str, float]:
    """Tells how long an epoch took, by the names of tables: the median of what is recorded."""
    found: dict[str, list[float]] = {}
    for record in records:
        seconds, epochs = record.results.get("seconds"), record.results.get("epochs")
        if seconds and epochs:
            found.setdefault(record.bench, []).append(seconds / epochs)
    return {bench: statistics.median(values) for bench, values in found.items()}
