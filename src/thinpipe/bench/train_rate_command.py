"""The words of ``thinpipe bench train`` on the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from thinpipe.bench.codecs_command import split_specs
from thinpipe.bench.options import Json, Output, Tiny, kept, report
from thinpipe.bench.record import Record
from thinpipe.bench.train_rate import BENCH, ONE_DEVICE, Plan, Row, rows_named
from thinpipe.bench.train_rate_run import measured
from thinpipe.bench.train_rate_sheet import train_rate_sheet
from thinpipe.errors import ThinpipeError
from thinpipe.reproduce.training.run import PATIENCE
from thinpipe.train.command import read_fields
from thinpipe.train.progress import is_live
from thinpipe.train.recipes import resolved
from thinpipe.train.stop import Stop

_RECIPE, _TINY_RECIPE = "cifar10-finetune", "digits"
_EPOCHS, _TINY_EPOCHS = 10, 2
_CODECS = "had:4"


def train_rate_command(
    *,
    recipe: Annotated[
        str | None, typer.Option(help=f"What is trained (default: {_RECIPE}; {_TINY_RECIPE} with --tiny).")
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(help="As one-device,cut-none,cut-had:4 (default: one-device, and a row for each of --codecs)."),
    ] = None,
    codecs: Annotated[
        str | None, typer.Option(help=f"Each packs activations and gradients of a row (default: {_CODECS}).")
    ] = None,
    stages: Annotated[int, typer.Option(min=2, help="Into how many the model is cut.")] = 3,
    cut: Annotated[
        str | None, typer.Option(help="Which of the recipe's cuts in three (default: the recipe's).")
    ] = None,
    chunks: Annotated[int | None, typer.Option(help="Micro-batches in a batch (default: the recipe's).")] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help=f"Of every row (default: {_EPOCHS}; {_TINY_EPOCHS} with --tiny).")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="The folder of data sets (default: the usual places).")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="F=V", help="Any field of the recipe, as weights=none; repeat it."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Of everything, as cpu (default: a GPU if there is one).")] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Compile all stages before the first step.")] = False,
    seed: Annotated[
        int | None, typer.Option(help="Of weights, order and all that is drawn (default: the recipe's).")
    ] = None,
    tiny: Tiny = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """How fast a recipe trains, and how accurate it becomes: on one device, and cut with a codec.

    Every row is trained as by thinpipe train, on all samples and with a test after each epoch, and recorded as soon as
    it is done.

    Example: [bold]thinpipe bench train --recipe cifar10-finetune --codecs had:4 --epochs 10[/bold]
    """
    if tiny and (recipe is not None or data_dir is not None):
        raise typer.BadParameter(f"--tiny trains {_TINY_RECIPE}; leave out --recipe and --data-dir")
    if rows is not None and codecs is not None:
        raise typer.BadParameter("--rows names the codec of each row, as cut-had:4; leave out --codecs")
    name = recipe or (_TINY_RECIPE if tiny else _RECIPE)
    # A row that diverges is recorded like any other.
    usual: dict[str, Any] = {"epochs": _TINY_EPOCHS if tiny else _EPOCHS, "on_nan": "continue"}
    said = {"cut": cut, "chunks": chunks, "epochs": epochs, "seed": seed, "data_dir": data_dir and str(data_dir)}
    given = {field: value for field, value in said.items() if value is not None}
    try:
        plan = Plan(
            recipe=resolved(name, {**usual, **read_fields(name, None, changes or ()), **given}),
            rows=_rows(rows, codecs or _CODECS),
            stages=stages,
            device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
            compile=compile,
            tiny=tiny,
        ).verify()
    except (ThinpipeError, ImportError) as error:
        raise typer.BadParameter(str(error)) from error
    records, status = _measure(plan, output)
    if records:
        report(BENCH, train_rate_sheet(records), records, output=output, tiny=tiny, as_json=json)
    raise typer.Exit(status)


def _rows(names: str | None, codecs: str) -> tuple[Row, ...]:
    if names is not None:
        return rows_named(split_specs(names))
    return Row(ONE_DEVICE), *map(Row.of_codec, split_specs(codecs))


def _measure(plan: Plan, output: Path | None) -> tuple[list[Record], int]:
    """Trains the rows and keeps their records; tells those of the rows that came to their end, and the exit status."""
    # Asked of the stream itself: the environment may have made a terminal of a file, for its colours.
    console = Console(stderr=True, highlight=False, force_terminal=None if sys.stderr.isatty() else False)
    records: list[Record] = []
    # A live display says it in its own place: what is written into its midst would stay there.
    with Stop(None if is_live(console) else PATIENCE) as stop:
        try:
            for record in measured(plan, stop, console):
                records.append(kept(record, output=output, tiny=plan.tiny))
        except (ThinpipeError, ImportError, OSError) as error:
            typer.echo(str(error), err=True)
            return records, 1
    return records, stop.status
