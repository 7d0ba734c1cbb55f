"""A command that is under way: finds what is recorded, and trains the rest, row after row."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from thinpipe.bench.options import kept
from thinpipe.bench.record import Record
from thinpipe.data.locate import DamagedDataError, DataError
from thinpipe.errors import ThinpipeError
from thinpipe.reproduce.training.ask import Ask, Job
from thinpipe.reproduce.training.made_up import write_texts
from thinpipe.reproduce.training.run import PATIENCE, RowError, Shelf, forget_states, record_of, recorded, trained
from thinpipe.reproduce.training.served import served
from thinpipe.reproduce.training.table import Row, Table
from thinpipe.train.log import BusyError, RunFolder
from thinpipe.train.progress import is_live
from thinpipe.train.recipe import RecipeError
from thinpipe.train.stop import Stop

_MISSING = (RecipeError, DataError, DamagedDataError, ImportError)
"""What a row is skipped for: something that it needs is not here."""


def _console() -> Console:
    # Asked of the stream itself: the environment may have made a terminal of a file, for its colours.
    return Console(stderr=True, highlight=False, force_terminal=None if sys.stderr.isatty() else False)


@dataclass
class Session:
    """A command that is under way.

    Args:
        table: whose rows are trained.
        ask: which, and how.
        folder: of the records; None for none.
        runs: of the runs of all tables.
        records: what is recorded of the rows that were asked for.
        skipped: for names of rows why they were not trained.
        elsewhere: how many rows another process was training.
        console: where progress is shown.
    """

    table: Table
    ask: Ask
    folder: Path | None
    runs: Path
    records: list[Record] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    elsewhere: int = 0
    console: Console = field(default_factory=_console)

    def run(self, *, again: bool) -> int:
        """Trains what is not recorded, or everything again.

        Returns:
            The exit status: that of the signal, if one came.

        Raises:
            ThinpipeError: a row failed, or was recorded or begun with other settings.
        """
        texts = self.runs / "made-up-texts"
        if self.ask.tiny:
            write_texts(texts)
        # All of them first: whoever recorded a row otherwise is told before days are spent on others.
        wanted = list(self._unrecorded(texts, again=again))
        shelf = Shelf()
        # A live display says it in its own place: what is written into its midst would stay there.
        with Stop(None if is_live(self.console) else PATIENCE) as stop:
            for number, job in enumerate(wanted, 1):
                # Others may have asked for the same rows since: several commands share them.
                if not again and (found := self._found(job)) is not None:
                    self.records.append(found)
                    continue
                self._say(f"{self.table.name} {job.name}, {number} of {len(wanted)}")
                self._train(job, shelf, stop)
                if stop.wanted:
                    self._say("saved; the same command goes on")
                    break
        return stop.status

    def _unrecorded(self, texts: Path, *, again: bool) -> Iterator[Job]:
        """Finds what is to be trained, all rows with the first seed first; keeps what is recorded."""
        for seed in self.ask.seeds:
            for row in self.ask.rows:
                try:
                    job = Job.of(self.table, row, seed, self.ask, texts)
                    job.stand_in()  # which looks for the encoder
                    found = None if again else self._found(job)
                except _MISSING as error:
                    self._skip(row, error)
                    continue
                if found is not None:
                    self.records.append(found)
                    continue
                if again:
                    self._forget(job)
                yield job

    def _found(self, job: Job) -> Record | None:
        return None if self.folder is None else recorded(job, self.folder)

    def _train(self, job: Job, shelf: Shelf, stop: Stop) -> None:
        run, train = self._place(job), served if self.table.served else trained
        try:
            if not train(job, shelf.samples(job.recipe, job.settings.device), run, stop, self.console):
                return
        except _MISSING as error:
            self._skip(job.row, error)
            return
        except BusyError:
            self.elsewhere += 1
            self._say(f"{job.name} is left to another process, which trains it right now")
            return
        except ThinpipeError as error:
            raise RowError(f"row {job.name}: {error}") from error
        self.records.append(kept(record_of(job, run.path), output=self.folder, tiny=self.ask.tiny))
        forget_states(run)

    def _forget(self, job: Job) -> None:
        """Deletes what is left of an earlier run, unless another process is at it."""
        run = self._place(job)
        with suppress(BusyError), run.owned():
            shutil.rmtree(run.path, ignore_errors=True)

    def _place(self, job: Job) -> RunFolder:
        return RunFolder(self.runs / self.table.name / job.name)

    def _skip(self, row: Row, error: BaseException) -> None:
        reason = " ".join(str(error).split())
        self.skipped[row.name] = f"{reason} (here: --encoder)" if "--model" in reason else reason
        self._say(f"{row.name} is skipped: {self.skipped[row.name]}")

    def _say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)
