"""The words of ``thinpipe reproduce`` on the command line."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from thinpipe.help import App
from thinpipe.reproduce.entries import ENTRIES
from thinpipe.reproduce.page.command import page_command

reproduce_app = App(
    help="Measure published tables and plots anew, their figures beside ours: Epipe's and torchgpipe's.\n\n"
    "Example: [bold]thinpipe reproduce sortquant-cifar10 --tiny[/bold]"
)


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
    grid = Table()
    grid.add_column("name", no_wrap=True)
    for head in ("shows", "needs", "takes about"):
        grid.add_column(head, overflow="fold")
    for entry in ENTRIES:
        grid.add_row(entry.name, entry.about, entry.needs, entry.time)
    console.print(grid)
    console.print("Times that are called estimated nobody has measured; the others were, on the machine they name.")


for _entry in ENTRIES:
    reproduce_app.command(_entry.name)(_entry.command)
reproduce_app.command("page")(page_command)
