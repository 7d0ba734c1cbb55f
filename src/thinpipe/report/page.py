"""A report as one page of HTML that needs nothing else: no network, no fonts, no other files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import thinpipe
from thinpipe.finite import dumps
from thinpipe.report.entry import Entry, read_entries
from thinpipe.report.headline import headline_of
from thinpipe.report.markup import Markup, element
from thinpipe.report.notes import notes_of
from thinpipe.report.page_parts import command
from thinpipe.report.script import SCRIPT, fingerprint
from thinpipe.report.section_bandwidth import bandwidth_section
from thinpipe.report.section_learning import learning_section
from thinpipe.report.section_quality import quality_section
from thinpipe.report.section_runs import runs_section
from thinpipe.report.section_step import step_section
from thinpipe.report.section_table import table_section
from thinpipe.report.section_time import time_section
from thinpipe.report.style import STYLE
from thinpipe.train.log import RunError
from thinpipe.train.way import Way

_SECTIONS = (
    ("quality", "Against bytes", quality_section),
    ("table", "Figures", table_section),
    ("learning", "Learning", learning_section),
    ("bandwidth", "Bandwidth", bandwidth_section),
    ("time", "Time", time_section),
    ("step", "One step", step_section),
    ("runs", "Commands", runs_section),
)

_WAYS = {
    Way.ONE_DEVICE: "trained on one device",
    Way.IN_PROCESS: "cut into stages in one process",
    Way.RANKS: "cut into stages on several ranks",
    Way.DATA_PARALLEL: "trained data parallel",
    Way.CONNECTED: "trained with a server",
}


def write_report(runs: Sequence[Path], output: Path) -> Path:
    """Writes a page about runs.

    Args:
        runs: their folders, one at least, in the order in which they are shown.
        output: the file; its folder is made if there is none.

    Returns:
        The file.

    Raises:
        RunError: a folder has no run, or a damaged one, or the file cannot be written.
    """
    return write_page(read_entries(runs), output)


def write_page(entries: Sequence[Entry], output: Path) -> Path:
    """Writes a page about runs that were read, and returns its file.

    Raises:
        RunError: it cannot be written.
    """
    made = ["thinpipe", "report", *(str(entry.run.path) for entry in entries), "--output", str(output)]
    return write_text(output, as_page(entries, shlex.join(made)))


def write_text(output: Path, text: str) -> Path:
    """Writes a file, all of it or nothing, and returns it.

    Raises:
        RunError: it cannot be written.
    """
    part = output.with_name(f".{output.name}.part")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8", errors="replace")
        part.replace(output)
    except OSError as error:
        raise RunError(f"{output} cannot be written: {error.strerror}; choose another: --output FILE") from error
    return output


def as_page(entries: Sequence[Entry], made: str) -> str:
    """Writes a page about runs that were read.

    Args:
        entries: the runs.
        made: the command that made the page.
    """
    title = headline_of(entries)
    sections = [(name, words, part) for name, words, make in _SECTIONS if (part := make(entries)) is not None]
    links = (element("li", element("a", words, href=f"#{name}")) for name, words, _ in sections)
    header = element(
        "header",
        element("p", "thinpipe report", class_="kicker"),
        element("h1", f"{title}."),
        element("p", _lead(entries), class_="lead"),
        _notes(entries),
        element("nav", element("ul", *links), aria_label="Sections"),
    )
    body = element(
        "body",
        element("a", "Skip to the figures", href="#table", class_="skip"),
        _PATTERN,
        element("div", header, element("main", *(part for _, _, part in sections)), _footer(made), class_="wide"),
        element("script", Markup(_data(entries)), type="application/json", id="figures"),
        element("script", Markup(SCRIPT)),
    )
    page = element("html", _head(title), "\n", body, lang="en")
    return f"<!doctype html>\n{page}\n"


def _head(title: str) -> Markup:
    # Whatever a run's files say, nothing but this page's own script runs, and nothing is loaded from anywhere.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src '{fingerprint()}'; img-src data:"
    return element(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        # Browsers ask for an icon of every page that has none.
        Markup('<link rel="icon" href="data:,">'),
        element("title", title),
        element("style", Markup(STYLE)),
    )


def _lead(entries: Sequence[Entry]) -> str:
    """Says what was trained."""
    recipes = list(dict.fromkeys(entry.run.origin.recipe.name for entry in entries))
    ways = list(dict.fromkeys(_WAYS[entry.settings.way] for entry in entries))
    count = f"{len(entries)} runs" if len(entries) > 1 else "One run"
    said = f"{count} of {' and '.join(recipes)}, {ways[0] if len(ways) == 1 else f'trained in {len(ways)} ways'}"
    batches = {entry.run.origin.recipe.batch for entry in entries}
    said += f", in batches of {batches.pop()}" if len(batches) == 1 else ""
    links = {entry.link for entry in entries}
    link = links.pop() if len(links) == 1 else None
    return f"{said}, over an emulated link of {link} each way." if link else f"{said}."


def _notes(entries: Sequence[Entry]) -> Markup | None:
    notes = notes_of(entries)
    return (
        element("ul", *(element("li", note) for note in notes), class_="notes", aria_label="Notes") if notes else None
    )


def _footer(made: str) -> Markup:
    about = f"Made by thinpipe {thinpipe.__version__}. This page is one file and loads nothing."
    return element(
        "footer",
        element("p", "This page was made by"),
        command("command-page", made, "the command of this page"),
        element("p", about),
    )


def _data(entries: Sequence[Entry]) -> str:
    """Says the figures for programs; no sign of it can end the element that it is in."""
    content = [{"label": entry.label, "run": str(entry.run.path), **entry.figures.to_json()} for entry in entries]
    said = dumps({"runs": content})
    return said.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


_PATTERN = element(
    "svg",
    element(
        "defs",
        element(
            "pattern",
            element("path", d="M0,0V6", class_="weave"),
            id="waiting",
            width="6",
            height="6",
            patternUnits="userSpaceOnUse",
            patternTransform="rotate(45)",
        ),
    ),
    class_="defs",
    aria_hidden="true",
)
"""Waiting is hatched: those who see no colours tell it from computing."""
