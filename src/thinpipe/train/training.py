"""A run from its beginning to its end, or to a signal."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console

from thinpipe.errors import NotFiniteError
from thinpipe.report.figures import Figures
from thinpipe.report.run import Run
from thinpipe.runtime.heap import keep_memory
from thinpipe.train.board import Board
from thinpipe.train.diverged import advice
from thinpipe.train.log import Log, Origin, RunFolder
from thinpipe.train.loop import Loop, Watcher
from thinpipe.train.parts import data as data_of
from thinpipe.train.parts import loss
from thinpipe.train.progress import Several, is_live, watching
from thinpipe.train.stop import SharedStop, Stop
from thinpipe.train.together import Nobody, SilentLog, loaded_alike, share_evaluated
from thinpipe.train.torchrun import Torchrun
from thinpipe.train.trainer import Trainer
from thinpipe.train.way import Way
from thinpipe.train.ways import input_device, trainer_of

_PATIENCE, _SHARED_PATIENCE = "finishing the step; again to stop at once", "finishing the step"
_EVENTS = "events"


def train(folder: RunFolder, origin: Origin, *, here: Torchrun | None, trace: Path | None, plain: bool = False) -> int:
    """Trains to the end of the recipe's epochs, or until a signal comes.

    Args:
        folder: of the run.
        origin: what to train, and how.
        here: this process among those of torchrun; None if it is the only one. Rank 0 alone writes and shows.
        trace: a file that gets a trace of all sides (default: none).
        plain: whether to print nothing but lines, for a log, even to a terminal (default: no).

    Returns:
        The exit status.

    Raises:
        NotFiniteError: the loss is not finite; the message says what may help and where the last good weights are.
        ThinpipeError: samples are not to be found or damaged, or somebody else failed.
    """
    keep_memory()
    # Rank 0 trains as long as the others do.
    with folder.owned() if here is None or here.rank == 0 else nullcontext():
        return _train(folder, origin, here=here, trace=trace, plain=plain)


def _train(folder: RunFolder, origin: Origin, *, here: Torchrun | None, trace: Path | None, plain: bool) -> int:
    recipe, settings, first = origin.recipe, origin.settings, here is None or here.rank == 0
    # Asked of the stream itself: the environment may have made a terminal of a file, for its colours.
    terminal = None if sys.stderr.isatty() and not plain else False
    console = Console(stderr=True, highlight=False, quiet=not first, force_terminal=terminal)
    device = input_device(settings, here)
    data = data_of(recipe, device) if here is None else loaded_alike(lambda: data_of(recipe, device))
    for note in data.notes:
        console.print(f"warning: {note}", markup=False, soft_wrap=True)
    patience = _PATIENCE if here is None else _SHARED_PATIENCE
    # A live display says it in its own place: what is written into its midst would stay there.
    said = patience if first and not is_live(console) else None
    stop = Stop(said) if here is None else SharedStop(said)
    # Whoever waits for a server that is not there may leave at once; from the first step on a signal is a wish.
    trainer = trainer_of(recipe, settings, data=data, folder=folder.states, stop=stop, here=here, trace=trace)
    try:
        # Not before there is somebody to train with: a server that refuses leaves no run behind.
        if first:
            folder.begin(origin)
        log, total = _log(folder, trainer, here), recipe.epochs * data.steps_per_epoch
        watched = _watched(
            folder,
            console,
            notice=lambda: patience if _is_asked(stop) else "",
            epochs=recipe.epochs,
            total=total,
            done=trainer.committed,
        )
        with stop, watched if first else nullcontext(Nobody()) as watcher:
            loop = Loop(recipe=recipe, data=data, loss_fn=loss, log=log, watcher=watcher, stopped=lambda: stop.wanted)
            done = loop.run(trainer)
    except NotFiniteError as error:
        raise NotFiniteError(f"{error}\n{advice(origin, folder.states)}") from error
    finally:
        trainer.close()
    if not first:
        return 0 if done else stop.status
    if done:
        folder.finish(Figures.of(Run.read(folder.path)).to_json())
        return 0
    console.print(f"saved after step {trainer.committed}; {how_to_go_on(folder, origin)}", soft_wrap=True)
    return stop.status


def how_to_go_on(folder: RunFolder, origin: Origin) -> str:
    """Says the command that resumes a run."""
    ranks, path = origin.settings.ranks, shlex.quote(str(folder.path))
    if ranks is None:
        return f"go on with: thinpipe train {origin.recipe.name} --run {path} --resume"
    program = f"torchrun --nproc-per-node {ranks} -m thinpipe"
    return f"go on with: {program} train {origin.recipe.name} --run-dir {path} --resume"


def is_traced(way: Way) -> bool:
    """Tells whether there is something to trace: more than one process."""
    return way in (Way.CONNECTED, Way.RANKS)


def _is_asked(stop: Stop) -> bool:
    """Tells whether somebody wants the run to end, even if not all ranks have heard of it."""
    return stop.wanted or (isinstance(stop, SharedStop) and bool(stop.own))


def _log(folder: RunFolder, trainer: Trainer, here: Torchrun | None) -> Log:
    log = folder.log(trainer.committed) if here is None or here.rank == 0 else None
    if here is None:
        assert log is not None
        return log
    evaluated = share_evaluated(log)
    return SilentLog(evaluated=evaluated) if log is None else log


@contextmanager
def _watched(
    folder: RunFolder, console: Console, *, notice: Callable[[], str], epochs: int, total: int, done: int
) -> Iterator[Watcher]:
    """Gives whoever shows and records a run."""
    board = Board.opened(folder.path / _EVENTS, committed=done, console=console) if done < total else None
    try:
        with watching(console, epochs=epochs, total=total, done=done, notice=notice) as watcher:
            yield watcher if board is None else Several([watcher, board])
    finally:
        if board is not None:
            board.close()
