"""The words of ``thinpipe reproduce --next`` on the command line."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from thinpipe.bench.options import Tiny
from thinpipe.errors import ThinpipeError
from thinpipe.reproduce.queue.call import Call
from thinpipe.reproduce.queue.growth import MOST
from thinpipe.reproduce.queue.order import ORDER, OrderError, read_order
from thinpipe.reproduce.queue.place import Place
from thinpipe.reproduce.queue.runner import Deadline
from thinpipe.reproduce.queue.travel import Carrier
from thinpipe.reproduce.training.ask import Ask
from thinpipe.reproduce.training.command import device_named


def next_command(
    *,
    minutes: Annotated[float, typer.Option(min=0.1, help="The call is over in so many, with everything saved.")] = 10.0,
    listed: Annotated[bool, typer.Option("--list", help="Show the queue: what is done, begun and to do.")] = False,
    side_by_side: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="How many are trained at once (default: one more as long as it pays)."),
    ] = None,
    carry: Annotated[
        Path | None,
        typer.Option(help="A folder with records and unfinished runs of other machines, which it gets back packed."),
    ] = None,
    bare: Annotated[bool, typer.Option(help="Measure the bare model first, which all rates are compared with.")] = True,
    order: Annotated[Path, typer.Option(help="Another list of what to run.", show_default=False)] = ORDER,
    data_dir: Annotated[Path | None, typer.Option(help="The folder of data sets (default: the usual places).")] = None,
    encoder: Annotated[
        Path | None, typer.Option(help="The folder of the encoder for tables of texts (default: they are skipped).")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Of everything (default: a GPU if there is one).")] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Compile stages first; for GPUs.")] = False,
    epochs: Annotated[int | None, typer.Option(min=1, help="Of every row (default: the published).")] = None,
    runs: Annotated[
        Path | None, typer.Option(help="The folder of unfinished runs (default: runs; with --output, runs in that).")
    ] = None,
    tiny: Tiny = False,
    output: Annotated[Path | None, typer.Option(help="The folder of records (default: results).")] = None,
) -> None:
    """Trains what is not recorded yet, for some minutes at a time.

    The most urgent comes first, and the next call goes on. Meant for a GPU that is idle now and then, on a machine that
    may be new every time.
    thinpipe reproduce --next is the same. Several calls may share their folders.

    Example: [bold]thinpipe reproduce next --minutes 9 --compile --carry carried[/bold]
    """
    begin = time.monotonic()
    if tiny and (output is None or data_dir is not None or encoder is not None):
        raise typer.BadParameter("--tiny has data and models of its own, and is recorded with --output alone")
    how = Ask(
        rows=(),
        seeds=(),
        epochs=epochs,
        chunks=None,
        changes={},
        data_dir=data_dir,
        encoder=encoder,
        device=device_named(device),
        compile=compile,
        tiny=tiny,
    )
    place = Place(
        results=output or Path("results"), runs=runs or (Path("runs") if output is None else output / "runs"), how=how
    )
    try:
        items = read_order(order)
    except OrderError as error:
        raise typer.BadParameter(str(error)) from error
    call = Call(
        place=place,
        items=items,
        deadline=Deadline(begin, 60 * minutes),
        carrier=None if carry is None else Carrier(carry, place),
        side_by_side=side_by_side,
        measures_bare=bare,
    )
    try:
        status = call.listed() if listed else call.run()
    except ThinpipeError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    raise typer.Exit(status)
