"""Makes the pages and their pictures from records, and writes them, or tells which of them are not current."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from thinpipe.bench.page import conditions_in, line
from thinpipe.reproduce.page.facts import commands, facts
from thinpipe.reproduce.page.frontier import TITLE, frontier
from thinpipe.reproduce.page.glance import glance
from thinpipe.reproduce.page.table import cells
from thinpipe.reproduce.training.picture import View, picture, plots
from thinpipe.reproduce.training.rows import Shown, records_in, shown
from thinpipe.reproduce.training.sheet import stand_ins
from thinpipe.reproduce.training.short import PAGE as SHORT
from thinpipe.reproduce.training.table import NONE, Table
from thinpipe.reproduce.training.tables import TABLES

_PICTURES = "results-"
_RESULTS = """# Results

What codecs and learned bottlenecks at the cuts do to accuracy, in training from the first step to the last, at the
settings of those who published them. `thinpipe reproduce page` writes the tables from the records in `results/`, and
every seed links to its record. [Short trainings](short-trainings.md) compare our codecs with each other at settings of
our own. What is measured in bytes and seconds alone is on the page of [benchmarks](benchmarks.md).

Published figures are those of [Epipe](https://github.com/timmywanttolearn/gpipe_test), a research prototype of 2022:
its main page, its report on reproducing NLP results and training on two machines, and its "Gpipe with compression
tests". Figures from other pages of its repository (at commit 3eaeaa5) are named below their table.

Rows follow Epipe's settings: the cut, the micro-batches, the size of a step, its schedule, float32, its pooling, and
torchvision's pretrained weights. Epipe sums the mean gradients of its micro-batches, so that its step is the learning
rate times their number; ours takes their mean, at a rate as many times as high, which is the same step. What differs on
purpose: the rate changes with every step and not once an epoch, and begins above 0; the last layer begins with a
deviation of 0.01 and not 0.016; images of Food-101 are cropped from a centre square; all test samples count, where
Epipe left out a last batch that was not full; and codes are packed, so that ratios are those of real bytes. Tables on
few images train shortly on a part of the data, with Epipe's step or others beside it. They say which codec costs more
than another, and stand beside no published figure.
"""
_SHORT = """# Short trainings

What our codecs and learned bottlenecks at the cuts cost beside each other, in trainings of 8 to 20 epochs at settings
of our own: a batch is one micro-batch, SGD has a momentum of 0.9, MobileNetV2 computes in bfloat16, and begins with
weights whose BatchNorm had been folded and made anew. The encoder on CoLA is MiniLM-L6, at five times the published
learning rate.

**No row has Epipe's settings**, and no published figure stands beside any. Sort and uniform quantization and power
iteration are listed as they were trained, and left out of the overview and of all pictures: at these settings they lost
far more than Epipe published. The page of [results](results.md) has them at the published settings.

A table's name trains its rows again as they were, `thinpipe reproduce short-cifar10`; the commands below are those of
their commits, when the tables of the published settings had these rows.
"""
_MEANING = """\
In the tables a row packs activations and gradients with the same codec, unless it names two, in training and in tests.
Figures are means and standard deviations over seeds, after the last epoch.

- **of float32**: bytes that crossed the cuts, both ways, headers included, over those of the tensors in float32, before
  any bottleneck. Without a codec it is 0.5 where we train in bfloat16; Epipe sent float32, which is 1.
- **to none**: difference to the row `none`, in points, mean and standard deviation over the seeds that both rows have.
  Their number stands behind it where there is one, or where either row has others as well. Rows are compared whether or
  not they were trained on the same device, and with compiled stages.
- **spikes**: runs in whose first quarter a gradient was more than four times as long as the median of its epoch, of
  those whose gradients were measured.
- **kB a sample**: bytes that crossed the cuts in training, over the samples.
"""
NOTHING = "No table has been trained: `thinpipe reproduce TABLE` trains one and records its rows in `results/`."


PAGES = {"results": (_RESULTS, "frontier"), SHORT: (_SHORT, "frontier-short")}
"""What each page begins with, and the name of its overview."""


def recorded(results: Path, page: str) -> list[tuple[Table, list[Shown]]]:
    """Reads the tables of a page of which something is recorded, in their order.

    Args:
        results: where the records are.
        page: without its ending.
    """
    tables = [(table, shown(table, records_in(table, results))) for table in TABLES.values() if table.page == page]
    return [(table, rows) for table, rows in tables if rows]


def pages_of(results: Path, docs: Path) -> dict[Path, str]:
    """Makes the pages and their pictures, by where they belong.

    Args:
        results: where the records are.
        docs: the folder of the pages; pictures are in its folder ``img``.
    """
    files = dict[Path, str]()
    for page in PAGES:
        files |= _page(page, results, docs)
    return files


def _page(page: str, results: Path, docs: Path) -> dict[Path, str]:
    tables, where = recorded(results, page), Path(os.path.relpath(results, docs))
    begin, overview = PAGES[page]
    parts, pictures = [begin, *([_MEANING] if tables else [])], dict[str, str]()
    compared = [(table, [each for each in rows if table.draws(each.row)]) for table, rows in tables]
    drawn = frontier(compared)
    if drawn is not None:
        pictures[f"{_PICTURES}{overview}.svg"] = drawn
        parts.append(f"![{TITLE}: accuracy against bytes](img/{_PICTURES}{overview}.svg)\n")
    parts += ["\n".join(lines)] if (lines := list(glance(compared))) else []
    for table, rows in tables:
        records = [record for each in rows for record in each.records]
        own = {f"{_PICTURES}{name}.svg": picture(table, view, records) for name, view in _plots(table, rows)}
        pictures |= own
        parts.append("\n".join(_section(table, rows, list(own), where, results)))
    done = [table.name for table, _ in tables]
    left = [table.name for table in TABLES.values() if table.page == page and table.name not in done]
    parts += [] if done else [f"{NOTHING}\n"]
    parts.append(_rest(left))
    pages = {docs / f"{page}.md": "\n".join(parts)}
    return pages | {docs / "img" / name: text for name, text in pictures.items()}


def write_pages(results: Path, docs: Path) -> list[Path]:
    """Writes the pages and their pictures; pictures of earlier ones that they have no more are deleted.

    Args:
        results: where the records are.
        docs: the folder that gets the pages, and the pictures in its folder ``img``.

    Returns:
        What was written, each page before its pictures.
    """
    files = pages_of(results, docs)
    (docs / "img").mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text)
    for path in _left_over(docs, files):
        path.unlink()
    return list(files)


def stale(results: Path, docs: Path) -> list[Path]:
    """Lists what ``write_pages`` would write otherwise, or delete."""
    files = pages_of(results, docs)
    changed = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    return [*changed, *_left_over(docs, files)]


def _left_over(docs: Path, files: Mapping[Path, str]) -> list[Path]:
    return [path for path in sorted((docs / "img").glob(f"{_PICTURES}*.svg")) if path not in files]


def _plots(table: Table, rows: Sequence[Shown]) -> Iterator[tuple[str, View]]:
    """Lists the plots that show something: a curve by epoch, or two rows of ours that can be compared."""
    for name, view in plots(table).items():
        if sum(view.shows(each.row) for each in rows) >= (1 if view.by_epoch else 2):
            yield name, view


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
