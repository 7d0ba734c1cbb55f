"""The words of ``thinpipe report`` on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from thinpipe.finite import dumps
from thinpipe.help import a_file

if TYPE_CHECKING:
    from thinpipe.report.entry import Entry

_WIDTH = 120
_PAGE = "report.html"


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="The folders of runs, as thinpipe train names them.", show_default=False),
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            parser=a_file,
            metavar="FILE",
            help="The page (default: report.html in the folder of the run; of several, in the current one).",
            show_default=False,
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Make a page of markdown, and print it if there is no --output.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Make the last line one JSON object.")] = False,
) -> None:
    """Shows training runs: how well they learned, what they sent, how fast they were, and the commands that made them.

    Prints a table, and writes a page of HTML that compares them in charts; it is one file and loads nothing. Runs may
    be finished, interrupted, or still going on. The timeline of one is drawn if its folder has a trace, as
    [bold]thinpipe train RECIPE --run DIR --trace DIR/trace.json[/bold] makes it.

    Example: [bold]thinpipe report runs/none runs/had-4 --output compared.html[/bold]
    """
    from thinpipe.report.entry import read_entries
    from thinpipe.report.show import as_markdown, in_terminal
    from thinpipe.train.log import RunError

    try:
        entries = read_entries(runs)
        page = _write(entries, output, markdown=markdown)
    except RunError as error:
        raise typer.BadParameter(str(error)) from error
    if markdown and page is None:
        typer.echo(as_markdown(entries))
    else:
        console = Console()
        console = console if console.is_terminal else Console(width=_WIDTH)
        in_terminal(entries, console)
        console.print(f"the page is {page}", highlight=False, markup=False, soft_wrap=True)
    if json:
        described = [_described(entry) for entry in entries]
        content = described[0] if len(described) == 1 else {"runs": described}
        typer.echo(dumps({**content, "page": None if page is None else str(page)}))


def _write(entries: Sequence[Entry], output: Path | None, *, markdown: bool) -> Path | None:
    """Writes a page, and tells where; None if markdown is to be printed instead."""
    from thinpipe.report.page import write_page, write_text
    from thinpipe.report.show import as_markdown

    if not markdown:
        return write_page(entries, output or (entries[0].run.path / _PAGE if len(entries) == 1 else Path(_PAGE)))
    return None if output is None else write_text(output, as_markdown(entries))


def _described(entry: Entry) -> dict[str, Any]:
    run = entry.run
    described = {"recipe": run.origin.recipe.to_json(), "settings": run.origin.settings.to_json()}
    curves = {
        "loss": [[line.step, line.loss] for line in run.steps],
        "accuracy": [[line.epoch, line.accuracy] for line in run.evaluations],
        "mcc": [[line.epoch, line.mcc] for line in run.evaluations if line.mcc is not None],
    }
    content = {"run": str(run.path), "command": run.origin.command, **described, **entry.figures.to_json()}
    return {**content, "curves": curves}
