"""A run shown: in a terminal, or as a page of markdown."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from thinpipe.report.figures import Figures
from thinpipe.report.plot import plot
from thinpipe.report.run import Run
from thinpipe.report.table import headline, rows


def show_figures(run: Run, console: Console) -> None:
    """Prints a line about the run, and its figures."""
    figures = Figures.of(run)
    console.print(headline(run, figures), highlight=False, markup=False, soft_wrap=True)
    made = Table("", "value", "meaning")
    for row in rows(figures):
        made.add_row(*row)
    if made.row_count:
        console.print(made, highlight=False)


def curves(run: Run) -> Iterator[tuple[str, list[str]]]:
    """Draws the curves, each with its title."""
    loss = plot([line.loss for line in run.steps])
    if loss:
        yield f"training loss, steps {run.steps[0].step} to {run.steps[-1].step}", loss
    accuracy = plot([line.accuracy for line in run.evaluations])
    if accuracy:
        yield f"test accuracy, epochs {run.evaluations[0].epoch} to {run.evaluations[-1].epoch}", accuracy


def in_terminal(run: Run, console: Console) -> None:
    """Prints table, curves and origin."""
    show_figures(run, console)
    for title, lines in curves(run):
        console.print(f"\n{title}", highlight=False)
        for line in lines:
            console.print(line, highlight=False, markup=False, no_wrap=True)
    console.print()
    for line in _origin(run):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def as_markdown(run: Run) -> str:
    """Writes the same as a page."""
    figures = Figures.of(run)
    page = [f"# {headline(run, figures)}", "", "| | value | meaning |", "| --- | --- | --- |"]
    page += [f"| {' | '.join(row)} |" for row in rows(figures)]
    for title, lines in curves(run):
        page += ["", f"## {title.capitalize()}", "", "```text", *lines, "```"]
    return "\n".join([*page, "", "## Made by", "", "```sh", *_origin(run), "```", ""])


def _origin(run: Run) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in run.origin.versions.items())
    yield run.origin.command
    yield f"# {run.path}, begun {run.origin.started}, {versions}"
