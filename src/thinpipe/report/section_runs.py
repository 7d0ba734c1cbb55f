"""The section of a page that says how each run was made: its command, and what is different from the usual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from thinpipe.report.entry import Entry
from thinpipe.report.markup import Markup, element
from thinpipe.report.page_parts import command, facts, section
from thinpipe.train.recipe import Recipe, field_names
from thinpipe.train.recipes import RECIPES
from thinpipe.train.settings import Settings


def runs_section(entries: Sequence[Entry]) -> Markup:
    """Writes the commands that made the runs, and the rest in parts to unfold."""
    several = len(entries) > 1
    about = f"The command{' of each run' if several else ''}, and what is different from the usual in it."
    return section("runs", "How they were made" if several else "How it was made", about, *map(_run, entries))


def _run(entry: Entry) -> Markup:
    origin, name = entry.run.origin, f"command-{entry.number}"
    more = element(
        "details",
        element("summary", "Details of ", entry.label),
        facts("Recipe: fields that are not as usual", _recipe(origin.recipe)),
        facts("Settings that are not as usual", _settings(origin.settings)),
        facts("Run", _about(entry)),
    )
    head = element("h3", entry.label)
    return element("div", head, command(name, entry.run.command, f"the command of {entry.label}"), more, class_="run")


def _recipe(recipe: Recipe) -> Iterator[tuple[str, str]]:
    # A recipe of another version has no defaults here, and all of its fields are told.
    subject = RECIPES.get(recipe.name)
    for name in field_names():
        value = getattr(recipe, name)
        if subject is None or value != getattr(subject.defaults, name):
            usual = "" if subject is None else f" (usually {_plain(getattr(subject.defaults, name))})"
            yield name, f"{_plain(value)}{usual}"


def _settings(settings: Settings) -> Iterator[tuple[str, str]]:
    for each in fields(Settings):
        value = getattr(settings, each.name)
        if value != each.default:
            yield each.name, _plain(value)


def _about(entry: Entry) -> Iterator[tuple[str, str]]:
    run, figures = entry.run, entry.figures
    yield "recipe", run.origin.recipe.name
    yield "folder", str(run.path)
    yield "begun", run.origin.started
    yield "steps", f"{figures.steps:,}"
    yield "finished", "yes" if figures.finished else "no"
    if run.origin.machine:
        yield "machine", run.origin.machine
    for name, version in run.origin.versions.items():
        yield name, str(version)


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "none" if value is None or value == "" else str(value)
