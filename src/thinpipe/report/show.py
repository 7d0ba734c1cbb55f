"""Runs shown: in a terminal, or as a page of markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from thinpipe.report.comparison import compare
from thinpipe.report.entry import Entry
from thinpipe.report.figures import Figures
from thinpipe.report.headline import headline_of
from thinpipe.report.notes import notes_of, run_notes
from thinpipe.report.plot import plot
from thinpipe.report.run import Run
from thinpipe.report.side_means import side_means
from thinpipe.report.sides import sides_of
from thinpipe.report.table import headline, rows


def show_figures(run: Run, console: Console) -> None:
    """Prints a line about the run, and its figures."""
    figures = Figures.of(run)
    console.print(headline(run, figures), highlight=False, markup=False, soft_wrap=True)
    made = Table("", "value", "meaning")
    for row in rows(figures, sides_of(run.origin.settings.way), side_means(run)):
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


def in_terminal(entries: Sequence[Entry], console: Console) -> None:
    """Prints one run's table, curves and origin; of several the table that compares them."""
    if len(entries) > 1:
        _show_comparison(entries, console)
        return
    run = entries[0].run
    show_figures(run, console)
    for note in run_notes(entries[0]):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    for title, lines in curves(run):
        console.print(f"\n{title}", highlight=False)
        for line in lines:
            console.print(line, highlight=False, markup=False, no_wrap=True)
    console.print()
    for line in _origin(run):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _show_comparison(entries: Sequence[Entry], console: Console) -> None:
    for line in (headline_of(entries), *notes_of(entries)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    made = Table("", "")
    for entry in entries:
        made.add_column(Text(entry.label), justify="right", overflow="fold")
    for _, group in groupby(compare(entries), key=lambda row: row.group):
        for row in group:
            made.add_row(row.name, row.unit, *map(Text, row.values))
        made.add_section()
    console.print(made, highlight=False)


def as_markdown(entries: Sequence[Entry]) -> str:
    """Writes the same as a page."""
    return _compared_page(entries) if len(entries) > 1 else _page(entries[0])


def _page(entry: Entry) -> str:
    run, figures = entry.run, entry.figures
    page = [
        f"# {headline(run, figures)}",
        "",
        *(f"- {note}\n" for note in run_notes(entry)),
        "| | value | meaning |",
        "| --- | --- | --- |",
    ]
    page += [f"| {' | '.join(row)} |" for row in rows(figures, sides_of(run.origin.settings.way), side_means(run))]
    for title, lines in curves(run):
        page += ["", f"## {title.capitalize()}", "", "```text", *lines, "```"]
    return "\n".join([*page, "", "## Made by", "", "```sh", *_origin(run), "```", ""])


def _compared_page(entries: Sequence[Entry]) -> str:
    page = [f"# {headline_of(entries)}", "", *(f"- {note}" for note in notes_of(entries)), ""]
    page += [_line(["", *(entry.label for entry in entries), "meaning"])]
    page += [_line(["---", *("---:" for _ in entries), "---"])]
    page += [_line([row.title, *row.values, row.meaning]) for row in compare(entries)]
    for entry in entries:
        page += ["", f"## {entry.label}"]
        for title, lines in curves(entry.run):
            page += ["", f"{title.capitalize()}:", "", "```text", *lines, "```"]
        page += ["", "Made by:", "", "```sh", *_origin(entry.run), "```"]
    return "\n".join([*page, ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _origin(run: Run) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in run.origin.versions.items())
    yield run.command
    yield f"# {run.path}, begun {run.origin.started}, {versions}"
