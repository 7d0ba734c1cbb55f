"""Runs beside each other: a row for each quantity, a column for each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thinpipe.finite import number_text
from thinpipe.report.entry import Entry
from thinpipe.report.sides import ANY, Sides
from thinpipe.train.way import Way

_SIZES = ((1e10, 1e9, "GB"), (1e7, 1e6, "MB"), (1e4, 1e3, "kB"), (0.0, 1.0, "B"))
"""The unit of sizes from so many bytes on, so that small ones beside large ones have digits left."""

_SIDES = 4
"""Of more sides the chart tells more than 4 rows for each."""


@dataclass(frozen=True)
class Row:
    """A quantity of all runs.

    Args:
        group: what kind of quantity it is.
        name: of the quantity.
        unit: of the values; empty where they have none.
        meaning: how it was measured.
        values: of each run; empty where there is none.
    """

    group: str
    name: str
    unit: str
    meaning: str
    values: tuple[str, ...]

    @property
    def title(self) -> str:
        """The name with the unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


def common_sides(entries: Sequence[Entry]) -> Sides:
    """Names the sides of all runs, if they are the same ones."""
    found = {entry.sides for entry in entries if entry.figures.network is not None}
    return found.pop() if len(found) == 1 else ANY


def compare(entries: Sequence[Entry]) -> list[Row]:
    """Lists the quantities that one run at least has."""
    sides = common_sides(entries)
    found = (*_how(entries), *_quality(entries), *_bytes(entries, sides), *_bandwidth(entries, sides))
    return [row for row in (*found, *_time(entries)) if any(row.values)]


def _how(entries: Sequence[Entry]) -> Iterator[Row]:
    def row(name: str, meaning: str, values: Sequence[str], unit: str = "") -> Row:
        return Row("How", name, unit, meaning, tuple(values))

    names = [entry.run.origin.recipe.name for entry in entries]
    if len(set(names)) > 1:
        yield row("recipe", "what was trained", names)
    yield row("way", "who computed what", [entry.settings.way.value for entry in entries])
    yield row("activations", "the codec forward", [_codec(entry, entry.settings.codec) for entry in entries])
    yield row("gradients", "the codec backward", [_codec(entry, entry.settings.grad_codec) for entry in entries])
    links = ["" if entry.rate is None else f"{entry.rate / 1e6:,.6g}" for entry in entries]
    yield row("link", "emulated, each way", links, "Mbit/s")
    epochs = [f"{entry.figures.epochs} of {entry.run.origin.recipe.epochs}" for entry in entries]
    yield row("epochs", "finished, of all", epochs)


def _quality(entries: Sequence[Entry]) -> Iterator[Row]:
    whole = "on the whole test set, through the same cuts"
    for name, field, form, meaning in (
        ("accuracy", "accuracy", ".2%", whole),
        ("best accuracy", "best_accuracy", ".2%", "of all epochs"),
        ("Matthews", "mcc", ".4f", "correlation on the whole test set"),
        ("best Matthews", "best_mcc", ".4f", "of all epochs"),
        ("test loss", "test_loss", ".4f", whole),
        ("training loss", "train_loss", ".4f", "mean of the last epoch"),
    ):
        values = [getattr(entry.figures, field) for entry in entries]
        last = [getattr(entry.figures, field.removeprefix("best_")) for entry in entries]
        if values != last or field == field.removeprefix("best_"):  # the best is often the last
            yield Row("Quality", name, "", meaning, _texts(values, form))


def _bytes(entries: Sequence[Entry], sides: Sides) -> Iterator[Row]:
    group = "Bytes of a batch"
    for name, field in ((sides.there, "sent"), (sides.back, "received")):
        values = [_counted(entry, field) for entry in entries]
        largest = max((value for value in values if value is not None), default=0.0)
        size, unit = next((size, unit) for least, size, unit in _SIZES if largest >= least)
        texts = _texts(values, ",.0f" if size == 1 else ",.1f", 1 / size)
        yield Row(group, name, unit, "all bytes: packets, their heads, and words", texts)
    ratios = [_counted(entry, "ratio") for entry in entries]
    yield Row(group, "ratio", "", "all bytes, of those of the tensors", _texts(ratios, ".2%"))


def _bandwidth(entries: Sequence[Entry], sides: Sides) -> Iterator[Row]:
    def row(name: str, meaning: str, values: Sequence[float | None]) -> Row:
        return Row("Bandwidth", name, "Mbit/s", meaning, _texts(values, ",.2f", 8e-6))

    over = [_timed(entry, "bandwidth_over_computation") for entry in entries]
    yield row("average over computation", "data over the computation of both sides, both ways", over)
    over = [_counted(entry, "bandwidth_over_wall") for entry in entries]
    yield row("average over wall time", "data over wall time, both ways", over)
    for side, prefix in _named(sides):
        for way in ("sent", "received"):
            peaks = [_timed(entry, f"{prefix}peak_{way}") for entry in entries]
            yield row(f"peak {way}, {side}", "in the busiest 100 ms", peaks)


def _time(entries: Sequence[Entry]) -> Iterator[Row]:
    def row(name: str, meaning: str, values: Sequence[float | None]) -> Row:
        return Row("Time of a batch", name, "ms", meaning, _texts(values, ",.1f", 1e3))

    yield row("time", "median of full batches, without the first", [entry.figures.seconds for entry in entries])
    speeds = [entry.figures.samples_per_second for entry in entries]
    yield Row("Time of a batch", "samples a second", "", "trained, over all steps", _texts(speeds, ",.0f"))
    names = list(dict.fromkeys(side.name for entry in entries for side in entry.times))
    if len(names) > _SIDES:
        return
    for title, field, meaning in (
        ("computation", "computed", "mean"),
        ("encode", "encode", "mean"),
        ("decode", "decode", "mean"),
        ("stall", "stalled", "mean, waiting for others"),
    ):
        for name in names:
            times = [next((side for side in entry.times if side.name == name), None) for entry in entries]
            yield row(f"{title}, {name}", meaning, [None if side is None else getattr(side, field) for side in times])


def _named(sides: Sides) -> list[tuple[str, str]]:
    """Lists the names of the sides, with what the fields of their costs begin with."""
    return [(side, prefix) for side, prefix in ((sides.first, ""), (sides.second, "server_")) if side is not None]


def _texts(values: Sequence[float | None], form: str, factor: float = 1.0) -> tuple[str, ...]:
    return tuple(number_text(None if value is None else factor * value, form) for value in values)


def _counted(entry: Entry, field: str) -> float | None:
    return None if entry.figures.network is None else entry.figures.network[field]


def _timed(entry: Entry, field: str) -> float | None:
    """Finds what was measured by a clock; None where nobody did, of which the log says 0."""
    return (_counted(entry, field) or None) if entry.sides.timed else None


def _codec(entry: Entry, said: str | None) -> str:
    return "" if entry.settings.way in (Way.ONE_DEVICE, Way.DATA_PARALLEL) else said or "none"
