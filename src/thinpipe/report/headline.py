"""The first sentence of a page: what came out, said so that every word of it is true of the runs below.

Of several runs that can be compared, the one that sends most is compared with the one that sends least and loses next
to no accuracy; if each of them loses more, with the one that sends least, and the loss is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thinpipe.report.entry import Entry
from thinpipe.report.units import bytes_text, times_text
from thinpipe.train.recipe import Recipe

_NEXT_TO_NOTHING = 0.003
"""Three tenths of a point."""

_SAME_SPEED = 0.05
"""A busy machine's clock tells no smaller difference."""

_SHAPE = ("way", "stages", "cuts", "map", "ranks", "replicas")
"""The settings that decide what crosses which cuts."""

_PACE = ("bandwidth", "device", "devices", "schedule")
"""Those that decide, beside codecs, how fast that is."""


def headline_of(entries: Sequence[Entry]) -> str:
    """Says what came out."""
    if len(entries) == 1:
        return _alone(entries[0])
    pair = _pair(entries)
    return _counted(entries) if pair is None else _compared(*pair)


def _alone(entry: Entry) -> str:
    name, figures = entry.run.origin.recipe.name, entry.figures
    if not figures.steps:
        return f"{name} has no steps yet"
    if figures.accuracy is None:
        return f"{name} has taken {_many(figures.steps, 'step')}, and is not tested yet"
    said = f"{name} reaches {figures.accuracy:.2%} accuracy after {_many(figures.epochs, 'epoch')}"
    if not figures.finished:
        said += f" of {entry.run.origin.recipe.epochs}"
    if entry.bytes and figures.network is not None:
        said += f", sending {bytes_text(entry.bytes)} a batch, {figures.network['ratio']:.1%} of its tensors"
    return said


def _pair(entries: Sequence[Entry]) -> tuple[Entry, Entry] | None:
    """Finds the run to compare with, and the one to compare; None where there are no such two."""
    sent = [entry for entry in entries if entry.bytes and entry.run.evaluations]
    if len(sent) < 2:
        return None
    base = max(sent, key=lambda entry: entry.bytes or 0)
    others = [entry for entry in sent if _comparable(entry, base)]
    good = [entry for entry in others if _loss(entry, base) <= _NEXT_TO_NOTHING]
    best = min(good or others, key=lambda entry: entry.bytes or 0, default=None)
    return None if best is None else (base, best)


def _comparable(entry: Entry, base: Entry) -> bool:
    same_recipe = _subject(entry.run.origin.recipe) == _subject(base.run.origin.recipe)
    fewer = (entry.bytes or 0) < (base.bytes or 0)
    return fewer and same_recipe and _alike(entry, base, _SHAPE) and bool(_epochs(entry, base))


def _subject(recipe: Recipe) -> dict[str, Any]:
    """Leaves out what two runs may differ in and still be compared epoch by epoch."""
    # A rate that falls to zero at the end has fallen less after the same epoch of a longer run.
    return recipe.numbers() | ({"epochs": 0} if recipe.lr_schedule == "constant" else {})


def _alike(entry: Entry, base: Entry, names: Sequence[str]) -> bool:
    return all(getattr(entry.settings, name) == getattr(base.settings, name) for name in names)


def _epochs(entry: Entry, base: Entry) -> list[int]:
    """Lists the epochs after which both were tested."""
    tested = {line.epoch for line in base.run.evaluations}
    return sorted(line.epoch for line in entry.run.evaluations if line.epoch in tested)


def _accuracy(entry: Entry, epoch: int) -> float:
    return next(line.accuracy for line in entry.run.evaluations if line.epoch == epoch)


def _loss(entry: Entry, base: Entry) -> float:
    last = _epochs(entry, base)[-1]
    return _accuracy(base, last) - _accuracy(entry, last)


def _compared(base: Entry, best: Entry) -> str:
    assert base.bytes and best.bytes
    said = f"{best.label} sends {times_text(base.bytes / best.bytes)} times fewer bytes than {base.label}"
    speed = _speed(base, best)
    return f"{said}{f' and is {speed}' if speed else ''}, {_quality(base, best)}"


def _quality(base: Entry, best: Entry) -> str:
    last = _epochs(best, base)[-1]
    ours, theirs = _accuracy(best, last), _accuracy(base, last)
    after = ""
    if not last == best.figures.epochs == base.figures.epochs:
        after = f" after {_many(last, 'epoch')}"
    if f"{ours:.2%}" == f"{theirs:.2%}":
        return f"at the same accuracy, {ours:.2%}{after}"
    return f"at {ours:.2%} accuracy instead of {theirs:.2%}{after}"


def _speed(base: Entry, best: Entry) -> str | None:
    """Compares the time of a batch; None where the runs had other links, devices or servers."""
    hosts = {(entry.settings.connect or "").rpartition(":")[0] for entry in (base, best)}
    alike = len(hosts) == 1 and _alike(best, base, _PACE)
    if not alike or not best.figures.seconds or not base.figures.seconds:
        return None
    factor = base.figures.seconds / best.figures.seconds
    over = f" over {best.link}" if best.link else ""
    if abs(factor - 1) <= _SAME_SPEED:
        return f"as fast{over}"
    return f"{times_text(factor)} times faster{over}" if factor > 1 else f"{times_text(1 / factor)} times slower{over}"


def _counted(entries: Sequence[Entry]) -> str:
    names = list(dict.fromkeys(entry.run.origin.recipe.name for entry in entries))
    said = f"{len(entries)} runs of {' and '.join(names)}" if len(names) < 3 else f"{len(entries)} runs"
    tested = [entry for entry in entries if entry.figures.accuracy is not None]
    if not tested:
        return f"{said}, not tested yet"
    low, high = (pick(tested, key=lambda entry: entry.figures.accuracy or 0.0) for pick in (min, max))
    least, most = f"{low.figures.accuracy:.2%}", f"{high.figures.accuracy:.2%}"
    if len(names) > 1:
        return said
    if least == most:
        return f"{said}, {'all' if len(tested) == len(entries) else f'{len(tested)} of them'} at {most} accuracy"
    return f"{said}: accuracy from {least} ({low.label}) to {most} ({high.label})"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
