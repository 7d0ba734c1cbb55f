"""The command line: ``thinpipe``."""

from __future__ import annotations

from typing import Annotated

import typer

from thinpipe import __version__
from thinpipe.help import App, Later

app = App(
    help="Train PyTorch models cut into pipeline stages, with what crosses the cuts packed small.\n\n"
    "Begin with [bold]thinpipe demo[/bold]; then [bold]thinpipe train digits --stages 2 --codec wave:4[/bold]. Every "
    "command has a --help with an example.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.later.update(
    demo=Later(
        "thinpipe.demo.command:demo_command",
        "Trains with a server over a slow link, without and with codecs, and writes a report; about a minute.",
    ),
    check=Later(
        "thinpipe.check.command:check_command",
        "Proves that your model computes the same in a pipe as on one device.",
    ),
    codecs=Later(
        "thinpipe.codecs.command:codecs_command",
        "Lists the codecs; or tells how many bytes a tensor takes in the codecs you name.",
    ),
    probe=Later(
        "thinpipe.check.probe_command:probe_command",
        "Tells what codecs at the cuts would do to your own model: its outputs, and the gradients of its parameters.",
    ),
    train=Later(
        "thinpipe.train.command:train_command",
        "Trains a recipe in one of five ways, with the same numbers in the log.",
    ),
    serve=Later(
        "thinpipe.remote.serve_command:serve_command",
        "Lends the middle of models to clients, which keep their data, their labels and both ends.",
    ),
    keygen=Later(
        "thinpipe.remote.keys_command:keygen_command",
        "Makes pairs of keys, with which a server and its clients know each other and encrypt what they say.",
    ),
    report=Later(
        "thinpipe.report.command:report_command",
        "Shows training runs: how well they learned, what they sent, how fast they were, and the commands that made "
        "them.",
    ),
    bench=Later("thinpipe.bench.command:bench_app", "Measure, as ratios within one run."),
    reproduce=Later(
        "thinpipe.reproduce.command:reproduce_app",
        "Measure published tables and plots anew, their figures beside ours: Epipe's and torchgpipe's.",
    ),
    schedule=Later("thinpipe.schedule.command:schedule_app", "Look at schedules before anything runs."),
    trace=Later("thinpipe.trace.command:trace_app", "Look at what a traced run did."),
)


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
