"""The words of ``thinpipe reproduce`` for the tables whose rows are trained; all of them have the same options."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from thinpipe.bench.options import Json, Output, Tiny
from thinpipe.errors import ThinpipeError
from thinpipe.reproduce.training.ask import Ask, reads_texts
from thinpipe.reproduce.training.session import Session
from thinpipe.reproduce.training.show import show
from thinpipe.reproduce.training.table import Row, Table
from thinpipe.train import resolved
from thinpipe.train.command import read_fields
from thinpipe.train.recipe import RecipeError
from thinpipe.train.settings import Settings

_TINY_SEEDS = (0,)
_DECIDED = {
    "seed": "use --seeds",
    "cut": "use --cut",
    "bottleneck": "use --rows",
    "bottleneck_fit": "use --rows",
    "model": "use --encoder",
    "data_dir": "use --data-dir",
}
"""Fields that a row or another option decides about."""


def training_command(table: Table) -> Callable[..., None]:
    """Makes the command of a table."""

    def command(
        *,
        rows: Annotated[
            str | None, typer.Option(help="Only rows whose names match one of these, as 'none,sort*' (default: all).")
        ] = None,
        seeds: Annotated[
            str | None,
            typer.Option(help="Each row is trained with each (default: 0,1,2, and of texts 3,4 too; 0 with --tiny)."),
        ] = None,
        epochs: Annotated[int | None, typer.Option(min=1, help="How many (default: the published).")] = None,
        chunks: Annotated[
            int | None, typer.Option(min=1, help="Micro-batches in a batch (default: the published).")
        ] = None,
        changes: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="F=V", help="Any field of the recipes, as lr=1e-4; repeat it."),
        ] = None,
        cut: Annotated[
            str | None,
            typer.Option(
                help="Where models are cut, as pooled, which sends far less at the second cut; several with commas; "
                "a wrong name lists those there are (default: the published place)."
            ),
        ] = None,
        data_dir: Annotated[Path | None, typer.Option(help="The folder of data sets (default: the usual places).")] = (
            None
        ),
        encoder: Annotated[
            Path | None,
            typer.Option(help="The folder of an encoder that stands in for RoBERTa-base; tables of texts only."),
        ] = None,
        device: Annotated[
            str | None, typer.Option(help="Of everything, as cpu (default: a GPU if there is one).")
        ] = None,
        compile: Annotated[
            bool, typer.Option("--compile", help="Compile stages first, which takes minutes; for GPUs.")
        ] = False,
        runs: Annotated[
            Path | None,
            typer.Option(
                help="The folder of the runs, with logs and what an interrupted one goes on from (default: runs; with "
                "--output, runs in that)."
            ),
        ] = None,
        again: Annotated[bool, typer.Option("--again", help="Train rows that are recorded already, too.")] = False,
        tiny: Tiny = False,
        json: Json = False,
        output: Output = None,
    ) -> None:
        if tiny and (data_dir is not None or encoder is not None):
            raise typer.BadParameter("--tiny has data and models of its own; leave out --data-dir and --encoder")
        if encoder is not None and not any(reads_texts(work.recipe) for work in table.works):
            raise typer.BadParameter(f"{table.name} trains on images, and has no encoder; leave out --encoder")
        ask = Ask(
            rows=_rows(table, cut, rows),
            seeds=_seeds(seeds) if seeds else _TINY_SEEDS if tiny else table.seeds,
            epochs=epochs,
            chunks=chunks,
            changes=_changes(table, changes or (), tiny=tiny),
            data_dir=data_dir,
            encoder=encoder,
            device=device_named(device),
            compile=compile,
            tiny=tiny,
        )
        folder = output if output is not None or tiny else Path("results")
        with _run_folder(runs, folder, output) as place:
            session = Session(table, ask, folder, place)
            try:
                status = session.run(again=again)
            except ThinpipeError as error:
                typer.echo(str(error), err=True)
                if session.records and folder is not None:
                    typer.echo(f"{len(session.records)} are recorded in {folder}; the same command goes on", err=True)
                raise typer.Exit(1) from error
        show(session, as_json=json)
        if status or not (session.records or session.elsewhere):
            raise typer.Exit(status or 1)

    command.__doc__ = (
        f"{table.about[0].upper()}{table.about[1:]}.\n\n{table.title}. "
        "Every row is trained with every seed and recorded as soon as it is done; "
        "one that is recorded is not trained again, and one that was interrupted goes on. Start the same command "
        "several times to train as many rows at once, on one GPU or on several with --device: they share the rows.\n\n"
        f"Example: [bold]thinpipe reproduce {table.name} --seeds 0,1,2[/bold]"
    )
    return command


@contextmanager
def _run_folder(given: Path | None, folder: Path | None, output: Path | None) -> Iterator[Path]:
    """Finds the folder of runs; what nobody keeps a record of is gone afterwards."""
    if given is not None or folder is not None:
        yield given or (Path("runs") if output is None else output / "runs")
        return
    with tempfile.TemporaryDirectory(prefix="thinpipe-") as place:
        yield Path(place)


def _rows(table: Table, cut: str | None, names: str | None) -> tuple[Row, ...]:
    cuts = () if cut is None else tuple(dict.fromkeys(word.strip() for word in cut.split(",")))
    for word in cuts:
        if word not in table.cuts:
            raise typer.BadParameter(f"{table.name} has no cut {word!r:.40}; use {', '.join(table.cuts)}")
    found = table.cut_at(cuts) if cuts else table.rows
    if names is None:
        return found
    patterns = [word.strip() for word in names.split(",")]
    wanted = tuple(row for row in found if any(fnmatchcase(row.name, pattern) for pattern in patterns))
    if not wanted:
        raise typer.BadParameter(f"no row matches {names!r}; there are {', '.join(row.name for row in found)}")
    return wanted


def _changes(table: Table, words: Sequence[str], *, tiny: bool) -> dict[str, Any]:
    """Reads the fields of ``--set``, which every recipe of the table must have."""
    try:
        found = read_fields(table.name, None, words)
        for name in found:
            if name in _DECIDED:
                raise RecipeError(f"--set {name} would make other rows of these; {_DECIDED[name]}")
        for work in table.works:
            resolved(work.tiny_recipe if tiny else work.recipe, found)
    except RecipeError as error:
        raise typer.BadParameter(str(error)) from error
    return found


def _seeds(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not word.isdecimal():
            raise typer.BadParameter(f"--seeds are whole numbers, as 0,1,2; got {word!r}")
    return tuple(dict.fromkeys(map(int, words)))


def device_named(name: str | None) -> str:
    """Reads ``--device``: a GPU if there is one, where nobody says another.

    Raises:
        typer.BadParameter: there is no such device.
    """
    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        Settings(device=chosen).verify()
    except RecipeError as error:
        raise typer.BadParameter(str(error)) from error
    return chosen
