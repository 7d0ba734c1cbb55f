"""The words of ``thinpipe bench page`` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from thinpipe.bench.catalogue_page import fill_catalogue
from thinpipe.bench.page import write_page

Results: TypeAlias = Annotated[Path, typer.Option(help="The folder of the records.")]


def page_command(
    *,
    results: Results = Path("results"),
    docs: Annotated[Path, typer.Option(help="The folder that gets benchmarks.md and its pictures.")] = Path("docs"),
) -> None:
    """Writes the page of benchmarks from what was recorded.

    With it, the figures in the catalogue of codecs, if it is there.

    Example: [bold]thinpipe bench page --results results --docs docs[/bold]
    """
    typer.echo(f"wrote {write_page(results, docs)}")
    catalogue = docs / "codecs.md"
    if catalogue.exists():
        catalogue.write_text(fill_catalogue(catalogue.read_text(), results))
        typer.echo(f"wrote {catalogue}")
