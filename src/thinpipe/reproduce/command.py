"""The words of ``thinpipe reproduce`` on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from thinpipe.reproduce.two_machines.command import two_machines_command


@dataclass(frozen=True)
class Entry:
    """A table that can be measured anew.

    Args:
        name: of the command.
        about: what it shows.
        needs: what it takes.
        time: about how long it takes.
    """

    name: str
    about: str
    needs: str
    time: str


ENTRIES = (
    Entry(
        "two-machines",
        "bytes, bandwidth and time of a batch between a client and a server",
        "thinpipe\\[net]; a GPU for the server, or patience",
        "10 minutes a link with a GPU and 16 cores; --tiny: half a minute",
    ),
)

reproduce_app = typer.Typer(help="Measure the documents' tables anew, their figures beside ours.")


@reproduce_app.callback(invoke_without_command=True)
def _reproduce(
    context: typer.Context,
    *,
    listed: Annotated[bool, typer.Option("--list", help="List the tables, what they need and how long they take.")] = (
        False
    ),
) -> None:
    """Holds the commands."""
    if context.invoked_subcommand is not None:
        return
    if not listed:
        typer.echo(context.get_help())
        raise typer.Exit(2)
    console = Console(highlight=False)
    grid = Table("name", "shows", "needs", "takes about")
    for entry in ENTRIES:
        grid.add_row(entry.name, entry.about, entry.needs, entry.time)
    console.print(grid)


reproduce_app.command("two-machines")(two_machines_command)
