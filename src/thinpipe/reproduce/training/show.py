"""Shows what a session has: a table, plots, where all of it is, and a line of JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table as Grid

from thinpipe.bench.record import Record
from thinpipe.bench.sheet import Sheet
from thinpipe.finite import dumps
from thinpipe.reproduce.training.picture import picture, plots
from thinpipe.reproduce.training.rows import records_in, shown
from thinpipe.reproduce.training.session import Session
from thinpipe.reproduce.training.sheet import table_sheet
from thinpipe.reproduce.training.table import Table

_WIDTH = 200


def show(session: Session, *, as_json: bool) -> None:
    """Prints everything, and ends with a line of JSON if asked to."""
    table, folder = session.table, session.folder
    records = [record for each in shown(table, session.records) for record in each.records]
    sheet = table_sheet(table, records, session.skipped)
    drawn = [] if folder is None or not records else _draw(table, folder)
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=_WIDTH)
    for grid in _grids(sheet, console.width):
        console.print(grid)
    for note in sheet.notes:
        console.print(note, markup=False)
    if folder is not None:
        for record in records:
            console.print(f"recorded in {record.path(folder)}", soft_wrap=True)
    for path in drawn:
        console.print(f"drawn in {path}", soft_wrap=True)
    if as_json:
        typer.echo(dumps(_said(session, sheet, records, drawn)))


def _grids(sheet: Sheet, width: int) -> Iterator[Grid]:
    """Cuts a table that is wider than the screen into several; each begins with the rows' names."""
    first = sheet.heads.index("row")
    columns = list(zip(sheet.heads, *sheet.lines, strict=True))
    taken: list[tuple[str, ...]] = []
    title = sheet.title
    for column in [each for each in columns if each is not columns[first]]:
        if taken and _wide([columns[first], *taken, column]) > width:
            yield _grid(title, [columns[first], *taken])
            taken, title = [], ""
        taken.append(column)
    yield _grid(title, [columns[first], *taken])


def _grid(title: str, columns: Sequence[tuple[str, ...]]) -> Grid:
    heads, *lines = zip(*columns, strict=True)
    grid = Grid(*heads, title=title or None)
    for line in lines:
        grid.add_row(*line)
    return grid


def _wide(columns: Sequence[tuple[str, ...]]) -> int:
    return 1 + sum(3 + max(map(len, column)) for column in columns)


def _draw(table: Table, folder: Path) -> list[Path]:
    """Draws the plots of all that is recorded, be it from this session or from another; returns where."""
    records = records_in(table, folder)
    rows = [each.row for each in shown(table, records)]
    paths = []
    for name, view in plots(table).items():
        if any(map(view.shows, rows)):
            paths.append(folder / table.name / f"{name}.svg")
            paths[-1].write_text(picture(table, view, records))
    return paths


def _said(session: Session, sheet: Sheet, records: list[Record], drawn: list[Path]) -> dict[str, object]:
    return {
        "bench": session.table.name,
        "table": [dict(zip(sheet.heads, line, strict=True)) for line in sheet.lines],
        "rows": [record.entries() for record in records],
        "skipped": session.skipped,
        "pictures": [str(path) for path in drawn],
    }
