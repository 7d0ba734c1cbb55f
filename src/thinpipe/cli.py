"""The command line: ``thinpipe``."""

from __future__ import annotations

from typing import Annotated

import typer

from thinpipe import __version__
from thinpipe.bench.command import bench_app
from thinpipe.check.command import check_command
from thinpipe.check.probe_command import probe_command
from thinpipe.codecs.command import codecs_command
from thinpipe.demo.command import demo_command
from thinpipe.help import App
from thinpipe.remote.keys_command import keygen_command
from thinpipe.remote.serve_command import serve_command
from thinpipe.report.command import report_command
from thinpipe.reproduce.command import reproduce_app
from thinpipe.schedule.command import schedule_app
from thinpipe.trace.command import trace_app
from thinpipe.train.command import train_command

app = App(
    help="Train PyTorch models cut into pipeline stages, with what crosses the cuts packed small.\n\n"
    "Begin with [bold]thinpipe demo[/bold]; then [bold]thinpipe train digits --stages 2 --codec wave:4[/bold]. Every "
    "command has a --help with an example.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("demo")(demo_command)
app.command("check")(check_command)
app.command("codecs")(codecs_command)
app.command("probe")(probe_command)
app.command("train")(train_command)
app.command("serve")(serve_command)
app.command("keygen")(keygen_command)
app.command("report")(report_command)
app.add_typer(bench_app, name="bench")
app.add_typer(reproduce_app, name="reproduce")
app.add_typer(schedule_app, name="schedule")
app.add_typer(trace_app, name="trace")


def _show_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _thinpipe(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Holds the options that come before any command."""


def main() -> None:
    """Runs the command line."""
    app()
