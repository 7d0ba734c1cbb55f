"""The words of ``thinpipe reproduce`` on the command line."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from thinpipe.help import App, Group
from thinpipe.reproduce.entries import ENTRIES
from thinpipe.reproduce.page.command import page_command
from thinpipe.reproduce.queue.command import next_command


class _Reproduce(Group):
    """Takes ``--next`` for the command ``next``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the words behind ``thinpipe reproduce``."""
        return super().parse_args(ctx, ["next", *args[1:]] if args[:1] == ["--next"] else args)


reproduce_app = App(
    cls=_Reproduce,
    help="Measure published tables and plots anew, their figures beside ours: Epipe's and torchgpipe's.\n\n"
    "Example: [bold]thinpipe reproduce sortquant-cifar10 --tiny[/bold]",
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
    # Help has those that were published; --list has all.
    reproduce_app.command(_entry.name, hidden=_entry.name.startswith("short-"))(_entry.command)
reproduce_app.command("next")(next_command)
reproduce_app.command("page")(page_command)
