"""The options that the commands of the published tables share, and what all of them do with the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Grid

from thinpipe.bench.devices import Devices
from thinpipe.bench.record import Record
from thinpipe.bench.sheet import Sheet
from thinpipe.bench.table import Row, Table
from thinpipe.bench.workload import has_torchgpipe
from thinpipe.errors import DeviceError
from thinpipe.finite import dumps
from thinpipe.suggest import instead_of

Rows: TypeAlias = Annotated[
    str | None, typer.Option(help="Rows by their published names, as baseline,pipeline-1 (default: all that fit).")
]
Where: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="cuda: all GPUs, or one for all stages if a row has more stages than there are GPUs; cuda:0: that one for "
        "all stages; a list, as cuda:0,cuda:1; cpu:N: N stages of one core each (default: cuda if there is any, else "
        "all cores)."
    ),
]
Tiny: TypeAlias = Annotated[
    bool, typer.Option("--tiny", help="The same shape of work, small, to try the command; recorded only with --output.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Make the last line one JSON object.")]
Output: TypeAlias = Annotated[
    Path | None, typer.Option(help="The folder that gets one JSON file a row (default: results).")
]
Seed: TypeAlias = Annotated[int, typer.Option(help="Of weights and data.")]
Steps: TypeAlias = Annotated[
    int, typer.Option(min=0, help="At most so many steps an epoch; 0 for the published epoch, remainder included.")
]
Epochs: TypeAlias = Annotated[
    int, typer.Option(min=2, help="Epochs, the first of which is not counted; published: 10.")
]
AsPublished: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--published-epochs",
        help="10 whole epochs with their remainder, whatever --epochs and --steps say.",
    ),
]

_WIDTH = 140


def chosen(table: Table, names: str | None, devices: str | None) -> tuple[list[Row], Devices]:
    """Finds the rows that were asked for, and where they run.

    Raises:
        typer.BadParameter: there is no such row or device, or a row has more stages than there are devices.
    """
    try:
        places = Devices.parse(devices)
    except DeviceError as error:
        raise typer.BadParameter(str(error)) from error
    by_name = {row.name: row for row in table.rows}
    if names is None:
        fitting = [row for row in table.rows if places.fit(row.n) and (has_torchgpipe() or not row.rival)]
        left = [row.name for row in table.rows if not places.fit(row.n)]
        if left:
            Console(stderr=True).print(f"not run, for want of devices in {places.text}: {', '.join(left)}")
        return fitting, places
    wanted = names.split(",")
    for name in wanted:
        if name not in by_name:
            raise typer.BadParameter(f"{table.bench} has no row {name!r}; {instead_of(name, by_name)}")
    rows = [by_name[name] for name in wanted]
    for row in rows:
        if row.rival and not has_torchgpipe():
            raise typer.BadParameter(f"row {row.name} is torchgpipe's: pip install 'thinpipe[bench]'")
        try:
            places.take(row.n)
        except DeviceError as error:
            raise typer.BadParameter(f"row {row.name}: {error}") from error
    return rows, places


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Shows a progress bar while something runs; what it gives is called with the name of what was done."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)


def kept(record: Record, *, output: Path | None, tiny: bool) -> Record:
    """Writes a row as soon as it is measured, since a later one may run out of time or memory; returns the row."""
    if output is not None or not tiny:
        path = record.save(output or Path("results"))
        if record.is_dirty:
            typer.echo(f"{path} was measured {record.origin}; commit them and measure again to publish it", err=True)
    return record


def report(
    bench: str, sheet: Sheet, records: Sequence[Record], *, output: Path | None, tiny: bool, as_json: bool
) -> None:
    """Prints the table and where its rows were ``kept``, and ends with a line of JSON if asked to."""
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=_WIDTH)
    grid = Grid(title=sheet.title)
    for head in sheet.heads:
        grid.add_column(head, overflow="fold", no_wrap=head == sheet.heads[0])
    for line in sheet.lines:
        grid.add_row(*line)
    console.print(grid)
    for note in sheet.notes:
        console.print(note)
    if output is not None or not tiny:
        for record in records:
            console.print(f"recorded in {record.path(output or Path('results'))}")
    if as_json:
        table = [dict(zip(sheet.heads, line, strict=True)) for line in sheet.lines]
        typer.echo(dumps({"bench": bench, "table": table, "rows": [record.entries() for record in records]}))
