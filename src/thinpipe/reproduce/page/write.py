"""Makes the page and its pictures from records, and writes them, or tells which of them are not current."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from thinpipe.bench.page import conditions_in, line
from thinpipe.reproduce.page.facts import commands, facts, trained_as_published
from thinpipe.reproduce.page.frontier import TITLE, frontier
from thinpipe.reproduce.page.glance import glance
from thinpipe.reproduce.page.table import cells
from thinpipe.reproduce.training.picture import picture, plots
from thinpipe.reproduce.training.rows import Shown, records_in, shown
from thinpipe.reproduce.training.sheet import stand_ins
from thinpipe.reproduce.training.table import NONE, Table, Work
from thinpipe.reproduce.training.tables import TABLES

PAGE = "results.md"
_PICTURES = "results-"
_FRONTIER = f"{_PICTURES}frontier.svg"
_INTRODUCTION = """# Results

What codecs and learned bottlenecks at the cuts do to accuracy, in training from the first step to the last.
`thinpipe reproduce page` writes the tables from the records in `results/`, and every seed links to its record.
What is measured in bytes and seconds alone is on the page of [benchmarks](benchmarks.md), RoBERTa-base in
[its real size](benchmarks.md#training-cola-end-to-end), with random weights, among it.

Published figures are those of [Epipe](https://github.com/timmywanttolearn/gpipe_test), a research prototype of 2022:
its main page, its report on reproducing NLP results and training on two machines, and its "Gpipe with compression
tests". Figures from other pages of its repository (at commit 3eaeaa5) are named below their table.
"""
_ELSEWHERE = """\
**No row of ours has Epipe's settings.** Ours stand below each table, with Epipe's where they differ. Images were
trained for fewer epochs, and a batch was one micro-batch: `sort` and `uniform` spread one grid over 256 images, where
Epipe's pipelines had 8 micro-batches of 32. Our SGD has a momentum of 0.9; Epipe's pipelines had none, and summed the
gradients of micro-batches, so that their step was the learning rate times the number of micro-batches. Epipe computed
in float32, and its first cut in the tables of sort quantization was after the ReLU6 that is after ours. Compare our
rows with each other, and published rows with each other: neither says what a codec does at the other's settings.
"""
_MEANING = """\
In the tables a row packs activations and gradients with the same codec, unless it names two, in training and in tests.
Figures are means and standard deviations over seeds, after the last epoch.

- **of float32**: bytes that crossed the cuts, both ways, headers included, over those of the tensors in float32, before
  any bottleneck. Without a codec it is 0.5 where we train in bfloat16; Epipe sent float32, which is 1.
- **to none**: difference to the row `none`, in points, mean and standard deviation over the seeds that both rows have.
  Their number stands behind it where there is one, or where either row has others as well. Rows are compared whether or
  not they were trained on the same device, and with compiled stages.
- **kB a sample**: bytes that crossed the cuts in training, over the samples.
"""
NOTHING = "No table has been trained: `thinpipe reproduce TABLE` trains one and records its rows in `results/`."


def recorded(results: Path) -> list[tuple[Table, list[Shown]]]:
    """Reads the tables of which something is recorded, in their order.

    Args:
        results: where the records are.
    """
    tables = [(table, shown(table, records_in(table, results))) for table in TABLES.values()]
    return [(table, rows) for table, rows in tables if rows]


def page_of(results: Path, docs: Path) -> dict[Path, str]:
    """Makes the page and its pictures, by where they belong.

    Args:
        results: where the records are.
        docs: the folder of the page; pictures are in its folder ``img``.
    """
    tables, where = recorded(results), Path(os.path.relpath(results, docs))
    parts, pictures = [_INTRODUCTION], dict[str, str]()
    if tables and not any(trained_as_published(each) for _, rows in tables for each in rows):
        parts.append(_ELSEWHERE)
    parts += [_MEANING] if tables else []
    drawn = frontier(tables)
    if drawn is not None:
        pictures[_FRONTIER] = drawn
        parts.append(f"![{TITLE}: accuracy against bytes](img/{_FRONTIER})\n")
    parts += ["\n".join(lines)] if (lines := list(glance(tables))) else []
    for table, rows in tables:
        records = [record for each in rows for record in each.records]
        own = {f"{_PICTURES}{name}.svg": picture(table, work, records) for name, work in _plots(table, rows)}
        pictures |= own
        parts.append("\n".join(_section(table, rows, list(own), where, results)))
    done = [table.name for table, _ in tables]
    parts.append(_rest([name for name in TABLES if name not in done]) if done else f"{NOTHING}\n")
    return {docs / PAGE: "\n".join(parts)} | {docs / "img" / name: text for name, text in pictures.items()}


def write_page(results: Path, docs: Path) -> list[Path]:
    """Writes the page and its pictures; pictures of earlier ones that it has no more are deleted.

    Args:
        results: where the records are.
        docs: the folder that gets the page, and the pictures in its folder ``img``.

    Returns:
        What was written, the page first.
    """
    files = page_of(results, docs)
    (docs / "img").mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text)
    for path in _left_over(docs, files):
        path.unlink()
    return list(files)


def stale(results: Path, docs: Path) -> list[Path]:
    """Lists what ``write_page`` would write otherwise, or delete."""
    files = page_of(results, docs)
    changed = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    return [*changed, *_left_over(docs, files)]


def _left_over(docs: Path, files: Mapping[Path, str]) -> list[Path]:
    return [path for path in sorted((docs / "img").glob(f"{_PICTURES}*.svg")) if path not in files]


def _plots(table: Table, rows: Sequence[Shown]) -> Iterator[tuple[str, Work | None]]:
    """Lists the plots that show something: a curve by epoch, or two rows of ours that can be compared."""
    least = 1 if table.by_epoch else 2
    for name, work in plots(table).items():
        if sum(work is None or work.label == each.row.work.label for each in rows) >= least:
            yield name, work


def _section(table: Table, rows: Sequence[Shown], pictures: Sequence[str], where: Path, results: Path) -> Iterator[str]:
    told = "; ".join(stand_ins([record for each in rows for record in each.records]))
    title = f"{table.title} ({told})" if told else table.title
    yield f"## {title}\n"
    cut = " Models are cut in three, with codecs at both cuts, both ways." if _has_codecs(table) else ""
    yield f"{table.about[0].upper()}{table.about[1:]}.{cut}\n"
    yield from (f"![{title}](img/{name})\n" for name in pictures)
    heads, lines = cells(rows, where)
    yield line(heads)
    yield line(["---"] * len(heads))
    yield from map(line, lines)
    yield ""
    yield from (f"- {fact}" for fact in (*facts(table, rows), *conditions_in(results / table.name)))
    strange = _strange(table, rows, results)
    if strange:
        yield f"- Left out, for no row of the table has the name: {', '.join(strange)}."
    yield ""
    yield from _folded("The commands that trained these rows, and where", [f"- {each}" for each in commands(rows)])


def _has_codecs(table: Table) -> bool:
    return any(row.codec != NONE for row in table.rows)


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    """Folds lines that few want to read; blank ones keep them markdown."""
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""]


def _strange(table: Table, rows: Sequence[Shown], results: Path) -> list[str]:
    known = {f"{record.row}.json" for each in rows for record in each.records}
    return [path.name for path in sorted((results / table.name).glob("*.json")) if path.name not in known]


def _rest(names: Sequence[str]) -> str:
    if not names:
        return ""
    listed = ", ".join(f"`{name}`" for name in names)
    asked = "`thinpipe reproduce --list` says what they show, need and take"
    return f"## Not run yet\n\nNothing is recorded of {listed}; {asked}.\n"
