"""The words of ``thinpipe reproduce page`` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thinpipe.bench.page_command import Results
from thinpipe.bench.record import RecordError
from thinpipe.reproduce.page.write import NOTHING, PAGES, recorded, stale, write_pages


def page_command(
    *,
    results: Results = Path("results"),
    docs: Annotated[Path, typer.Option(help="The folder that gets results.md and its pictures.")] = Path("docs"),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if anything is not current.")] = False,
) -> None:
    """Writes the pages of trained tables from what was recorded.

    Example: [bold]thinpipe reproduce page --results results --docs docs[/bold]
    """
    try:
        (_check if check else _write)(results, docs)
    except RecordError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error


def _write(results: Path, docs: Path) -> None:
    if not any(recorded(results, page) for page in PAGES):
        typer.echo(NOTHING)
    for path in write_pages(results, docs):
        typer.echo(f"wrote {path}")


def _check(results: Path, docs: Path) -> None:
    old = stale(results, docs)
    for path in old:
        typer.echo(f"{path} is not what {results} gives; the same command without --check writes it", err=True)
    if old:
        raise typer.Exit(1)
    typer.echo(f"the pages in {docs} are current")
