"""What a reader must know before comparing runs: which are not finished, differ in their recipes, or lack something."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from thinpipe.report.comparison import common_sides
from thinpipe.report.entry import Entry
from thinpipe.report.sides import ANY


def notes_of(entries: Sequence[Entry]) -> list[str]:
    """Lists sentences; none where there is nothing to mind."""
    own = (note for entry in entries for note in run_notes(entry))
    return [*_unfinished(entries), *own, *_recipes(entries), *_ways(entries), *_traces(entries)]


def run_notes(entry: Entry) -> Iterator[str]:
    """Lists what one run's log has to say: of its samples, why it stopped, and whether its loss was ever not finite."""
    for note in entry.run.notes:
        yield f"{entry.label}: {note.text}."
    wild = next((line for line in entry.run.steps if not math.isfinite(line.loss)), None)
    if wild is not None:
        yield f"{entry.label}: the loss was not finite, first in step {wild.step}, in epoch {wild.epoch + 1}."


def _unfinished(entries: Sequence[Entry]) -> Iterator[str]:
    states: dict[tuple[int, int], list[str]] = {}
    for entry in entries:
        if not entry.figures.steps:
            yield f"{entry.label} has no steps yet."
        elif not entry.figures.finished:
            reached = entry.figures.epochs, entry.run.origin.recipe.epochs
            states.setdefault(reached, []).append(entry.label)
    for (done, wanted), names in states.items():
        verb = "is" if len(names) == 1 else "are"
        yield f"{', '.join(names)} {verb} not finished: {done} of {wanted} epochs. The numbers are those so far."


def _recipes(entries: Sequence[Entry]) -> Iterator[str]:
    recipes = [entry.run.origin.recipe.numbers() for entry in entries]
    if len({each["name"] for each in recipes}) > 1:
        names = ", ".join(dict.fromkeys(each["name"] for each in recipes))
        yield f"The runs are of different recipes: {names}. Times and bytes can be compared, accuracies cannot."
        return
    for name in recipes[0]:
        values = [_plain(each[name]) for each in recipes]
        if len(set(values)) > 1:
            said = ", ".join(f"{value} ({entry.label})" for value, entry in zip(values, entries, strict=True))
            yield f"The recipes differ in {name}: {said}."


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _ways(entries: Sequence[Entry]) -> Iterator[str]:
    if common_sides(entries) is not ANY or all(entry.figures.network is None for entry in entries):
        return
    ways = {entry.settings.way: entry.sides for entry in entries if entry.figures.network is not None}
    said = "; ".join(f"{way.value}: there is {sides.there}, back is {sides.back}" for way, sides in ways.items())
    yield f"The runs were trained in different ways, and bytes are counted at different places. {said}."


def _traces(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        if entry.trace_error is not None:
            yield f"The trace of {entry.label} cannot be read, and its timeline is left out: {entry.trace_error}"
