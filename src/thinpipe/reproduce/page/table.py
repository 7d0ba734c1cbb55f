"""A table of the page: ours with its difference to ``none``, and the published figure beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from thinpipe.reproduce.page.compare import Difference
from thinpipe.reproduce.page.figures import LAST_LOSS, Figure
from thinpipe.reproduce.training.rows import Shown
from thinpipe.reproduce.training.sheet import MEASURES, bottlenecks, figure, percent, published
from thinpipe.reproduce.training.table import NONE

Column = tuple[str, Callable[[Shown], str]]
_NEAR = 0.02
_RATIOS = ("float32_ratio_cut_1", "float32_ratio_cut_2")


_PUBLISHED: tuple[Column, ...] = (
    ("published", lambda each: published(each.row.published)),
    ("published ratio", lambda each: figure(each.row.published.ratio)),
)


def cells(rows: Sequence[Shown], results: Path) -> tuple[list[str], list[list[str]]]:
    """Makes a table: heads, and a line for each row. A column that would say nothing is left out.

    Args:
        rows: those that are recorded.
        results: the folder of the records, from where the page is.
    """
    shown = [each for each in _columns(rows, results) if each is not None]
    return [head for head, _ in shown], [[cell(each) for _, cell in shown] for each in rows]


def _columns(rows: Sequence[Shown], results: Path) -> list[Column | None]:
    measure = rows[0].row.work.measure
    return [
        ("trained", lambda each: each.row.work.label) if len({each.row.work.label for each in rows}) > 1 else None,
        ("row", lambda each: each.row.name),
        ("codec", lambda each: each.row.both),
        ("cut", lambda each: each.row.cut) if any(each.row.elsewhere is not None for each in rows) else None,
        ("bottlenecks", bottlenecks) if any(each.row.learned is not None for each in rows) else None,
        ("of float32", lambda each: figure(each.mean("float32_ratio"), "{:.4f}")),
        ("cut 1, cut 2", _by_cut) if any(map(_by_cut, rows)) else None,
        (MEASURES[measure], lambda each: percent(each.spread(measure), len(each.records))),
        ("seeds", lambda each: _seeds(each, results)),
        ("to none", lambda each: difference(each, rows)),
        *(_beside_a_correlation(rows) if measure == "mcc" else ()),
        *(_PUBLISHED if any(each.row.published.value is not None for each in rows) else ()),
        ("spikes", _spikes) if any(each.spikes() for each in rows) else None,
        ("kB a sample", _kilobytes),
    ]


def _beside_a_correlation(rows: Sequence[Shown]) -> list[Column]:
    """Lists columns beside a measure that scatters: what scatters less."""
    return [
        ("best epoch", lambda each: percent(each.spread("best_mcc"), len(each.records))),
        *_with_difference("accuracy", Figure.result("accuracy"), rows),
        *_with_difference("last loss", LAST_LOSS, rows),
    ]


def _with_difference(name: str, shown: Figure, rows: Sequence[Shown]) -> list[Column]:
    return [
        (MEASURES.get(name, name), lambda each: shown.written(shown.spread(each.records), len(each.records))),
        (f"{name} to none", lambda each: difference(each, rows, shown)),
    ]


def _by_cut(each: Shown) -> str:
    """Writes the ratio of each cut, where they differ by more than headers make."""
    first, second = map(each.mean, _RATIOS)
    if first is None or second is None or abs(first - second) <= _NEAR * max(first, second):
        return ""
    return f"{first:.4f}, {second:.4f}"


def _seeds(each: Shown, results: Path) -> str:
    """Counts the seeds; each leads to its record."""
    links = [f"[{record.settings['seed']}]({record.path(results).as_posix()})" for record in each.records]
    return f"{len(links)}: {', '.join(links)}"


def difference(each: Shown, rows: Sequence[Shown], shown: Figure | None = None) -> str:
    """Writes what a row has more than ``none``.

    Args:
        each: the row.
        rows: of its table.
        shown: what of them (default: what its work is measured by, in points).
    """
    if each.row.codec == NONE and each.row.learned is None:
        return ""
    shown = shown or Figure.result(each.row.work.measure)
    found = Difference.of(each, rows, shown)
    if found is None:
        return "-"
    text = shown.written(found.spread, found.seeds, sign="+")
    return text if found.every and found.seeds > 1 else f"{text} ({found.seeds} seed{'s' if found.seeds > 1 else ''})"


def _spikes(each: Shown) -> str:
    found = each.spikes()
    return "-" if found is None else f"{found[0]} of {found[1]}"


def _kilobytes(each: Shown) -> str:
    found = each.mean("bytes_per_sample")
    return figure(None if found is None else found / 1000, "{:,.1f}")
