"""The words of ``thinpipe report`` on the command line."""

from __future__ import annotations

import json as javascript
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from thinpipe.report.figures import Figures
from thinpipe.report.run import Run
from thinpipe.report.show import as_markdown, in_terminal
from thinpipe.train.log import RunError

_WIDTH = 120


def report_command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run, as thinpipe train names it.", show_default=False)
    ],
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a page of markdown.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Make the last line one JSON object.")] = False,
) -> None:
    """Shows a training run: how well it learned, what it sent, how fast it was, and the command that made it.

    It may be finished, interrupted, or still going on.

    Example: [bold]thinpipe report runs/digits-20260731-142501[/bold]
    """
    try:
        found = Run.read(run)
    except RunError as error:
        raise typer.BadParameter(str(error)) from error
    if markdown:
        typer.echo(as_markdown(found))
    else:
        console = Console()
        in_terminal(found, console if console.is_terminal else Console(width=_WIDTH))
    if json:
        origin = found.origin
        described = {"recipe": origin.recipe.to_json(), "settings": origin.settings.to_json()}
        curves = {
            "loss": [[line.step, line.loss] for line in found.steps],
            "accuracy": [[line.epoch, line.accuracy] for line in found.evaluations],
            "mcc": [[line.epoch, line.mcc] for line in found.evaluations if line.mcc is not None],
        }
        content = {"run": str(run), "command": origin.command, **described, **Figures.of(found).to_json()}
        typer.echo(javascript.dumps({**content, "curves": curves}))
