"""Writes the page of benchmarks from the records in ``results/``: a section, a table and a picture each."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from thinpipe.bench import codecs, codecs_device, codecs_sheet, cores, heap, transparency
from thinpipe.bench.data_parallel_sheet import every_row as data_parallel_every_row
from thinpipe.bench.link_sheet import link_sheet
from thinpipe.bench.published_sheet import memory_sheet, speed_sheet, timeline_sheet
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.rows import (
    ACCURACY,
    AMOEBANET_MEMORY,
    AMOEBANET_SPEED,
    RESNET_SPEED,
    UNET_MEMORY,
    UNET_SPEED,
    UNET_TIMELINE,
)
from thinpipe.bench.sheet import Sheet, cores_sheet, transparency_sheet
from thinpipe.bench.svg import bar_chart, line_chart
from thinpipe.bench.table import Table
from thinpipe.bench.train_rate import BENCH as TRAIN_RATE
from thinpipe.bench.train_rate_sheet import accuracy_picture, train_rate_sheet
from thinpipe.bench.versus_sheet import earlier_sheet, every_row
from thinpipe.reproduce.two_machines.row import order as two_machines_order
from thinpipe.reproduce.two_machines.sheet import (
    COSTS_TITLE,
    TITLE,
    average_picture,
    costs_sheet,
    published_sheet,
)
from thinpipe.train.recipes import RECIPES

_INTRODUCTION = """# Benchmarks

Written by `thinpipe bench page` from the records in `results/`. Unless another source is named, published figures are
those of [torchgpipe's benchmarks](https://torchgpipe.readthedocs.io/en/stable/benchmarks.html), on eight Tesla P40 with
PyTorch 1.3: their ratios can be compared with ours, their throughput cannot. The tables of two machines, of pipelines
and of data parallel training have the figures of [Epipe](https://github.com/timmywanttolearn/gpipe_test), the research
prototype of 2022 that this project began with: its report on two machines, and its report "speed and acc".
"""
_CONDITIONS = "README.md"
"""Beside the records of a bench: what they do not tell, as what else their machine was doing."""


BAR = r"\|"
"""A bar in a cell, where one alone would end the cell."""


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Args:
        name: of its picture.
        bench: the folder of its records.
        title: above it.
        command: what records a row.
        setting: what all rows have in common.
        order: its rows, or patterns of their names.
        sheet: makes its table.
        picture: draws its picture.
        more: draws further ones, by what they show.
        rows: the published rows, which are shown even where nothing is recorded; records are found by their names and
            not by ``order`` (default: none).
        published: writes figures that are not of what ours are of, and why they are there (default: none).
        whole: whether its table has all published rows, those that were not run among them.
    """

    name: str
    bench: str
    title: str
    command: str
    setting: str
    order: tuple[str, ...]
    sheet: Callable[[Sequence[Record]], Sheet]
    picture: Callable[[Sheet, Sequence[Record]], str]
    more: Mapping[str, Callable[[Sheet, Sequence[Record]], str]] = field(default_factory=dict)
    rows: Table | None = None
    published: Callable[[], Iterable[str]] = tuple
    whole: bool = False

    def records(self, results: Path) -> list[Record]:
        """Reads the records of its rows, in their order."""
        if self.rows is not None:
            every = sorted((results / self.bench).glob("*.json"))
            return [Record.load(file) for row in self.rows.rows for file in every if self.rows.row_of(file.stem) is row]
        files = [file for row in self.order for file in sorted((results / self.bench).glob(f"{row}.json"))]
        return [Record.load(file) for file in files]


def _bars(sheet: Sheet, _: Sequence[Record]) -> str:
    return bar_chart(sheet.title, sheet.measure, sheet.bars)


def curves_picture(records: Sequence[Record]) -> str:
    """Draws the error curves of ``transparency``, each in the band of its deviation."""
    curves = {}
    for record in records:
        by_epoch = zip(*record.samples.values(), strict=True)
        curves[record.row] = [(statistics.mean(e), statistics.stdev(e) if len(e) > 1 else 0.0) for e in by_epoch]
    return line_chart("With and without a pipe", "test error by epoch", curves)


def _section(table: Table, sheet: Callable[[Table, Sequence[Record]], Sheet]) -> Section:
    optimizer = {"sgd": "SGD at 0.1", "rmsprop": "RMSprop"}[table.optimizer]
    loss = "binary" if table.network == "unet" else "1000-class"
    setting = f"Published: images of {table.pixels} x {table.pixels}, {loss} cross entropy, {optimizer}, float32."
    bench, command = table.bench, f"thinpipe bench {table.bench}"
    return Section(bench, bench, table.title, command, setting, (), partial(sheet, table), _bars, rows=table)


_CORES = Section(
    cores.BENCH,
    cores.BENCH,
    "AmoebaNet-D, speed on CPU cores",
    "thinpipe bench amoebanet-speed --devices cpu:8",
    "Each stage has one core: ours are processes, unless it was asked for threads, and torchgpipe's are threads.",
    tuple(row.name for row in AMOEBANET_SPEED.rows),
    partial(cores_sheet, AMOEBANET_SPEED),
    _bars,
)


def _training(data: str, network: str, options: str, published: Callable[[], Iterable[str]] = tuple) -> Section:
    rows = tuple(f"{data.lower()}-{way}" for way in transparency.WAYS)
    return Section(
        f"{transparency.BENCH}-{data.lower()}",
        transparency.BENCH,
        f"Transparency, {network} on {data}",
        f"thinpipe bench transparency{options}",
        "The same network trained with and without a pipe, from the same weights on the same batches.",
        rows,
        transparency_sheet,
        lambda _, records: curves_picture(records),
        published=published,
    )


def _accuracy() -> Iterator[str]:
    """Writes torchgpipe's own table of transparency, of which nothing of ours can be a row."""
    yield (
        "torchgpipe's table is of ResNet-101 on ImageNet after 90 epochs: top-1 error in percent, trained by "
        "torchgpipe, by `nn.DataParallel`, and as Goyal et al. published it. thinpipe has no row of it, which would "
        "take ImageNet. What stands for it here is ResNet-18 on CIFAR-10, trained with and without a pipe: is the "
        "error the same?\n"
    )
    yield line(["batch", "torchgpipe, published", "nn.DataParallel, published", "Goyal et al."])
    yield line(["---"] * 4)
    yield from (line([batch, *errors]) for batch, errors in ACCURACY.items())
    yield ""


def _codecs(
    name: str,
    setting: str,
    order: tuple[str, ...],
    sheet: Callable[[Sequence[Record]], Sheet],
    picture: Callable[[Sheet, Sequence[Record]], str],
    options: str = "--tensors DIR",
) -> Section:
    command = f"thinpipe bench {codecs.BENCH} {options}"
    return Section(f"codecs-{name}", codecs.BENCH, f"Codecs, {name}", command, setting, order, sheet, picture)


def _captured(kind: str, order: tuple[str, ...], setting: str) -> Section:
    sheet = partial(codecs_sheet.codecs_sheet, f"Codecs on {kind}")
    return _codecs(kind, setting, order, sheet, codecs_sheet.codecs_picture)


_CODECS = (
    _captured(
        "activations",
        codecs_sheet.ACTIVATIONS,
        "What crossed a cut in training (`thinpipe bench capture`): MobileNetV2 on CIFAR-10 at 224 pixels, after its "
        "first convolution and after its last block; MiniLM-L6 on CoLA, after layers 0 and 4, "
        "with each batch as long as its longest sentence, and with all sentences filled up to 128 tokens.",
    ),
    _captured(
        "gradients",
        codecs_sheet.GRADIENTS,
        "What came back at the same cuts. MobileNetV2's second is constant over each 7 x 7 map, for a mean follows it; "
        "about half of MiniLM's are the zeros of padding, and nine in ten where sentences are filled up.",
    ),
    _codecs(
        "splits",
        "Sort quantization, `sort:Q+S`, with every S at the same total of bits.",
        (*codecs_sheet.ACTIVATIONS, *codecs_sheet.GRADIENTS),
        codecs_sheet.splits_sheet,
        codecs_sheet.splits_picture,
    ),
    _codecs(
        "speed",
        "On the CPU, in turns within one run.",
        (codecs.SPEED_ROW,),
        codecs_sheet.speed_sheet,
        codecs_sheet.speed_picture,
    ),
    _codecs(
        "GPU",
        "How long codecs keep a GPU busy.",
        ("speed-cuda",),
        codecs_device.device_sheet,
        codecs_device.device_picture,
        "--device cuda",
    ),
)

_LINK = Section(
    "link",
    "link",
    "Two processes and a wire",
    "thinpipe bench link --bandwidth 50mbit",
    "Two ranks in two network namespaces, whose link the kernel slows down (`tc`'s token bucket, 256 kB of burst).",
    ("full", "200mbit", "50mbit"),
    link_sheet,
    _bars,
)

_TWO_MACHINES_COMMAND = "thinpipe reproduce two-machines --bandwidth 4gbit,1gbit,100mbit --cut before-relu,pooled"
_TWO_MACHINES = (
    Section(
        "two-machines",
        "two-machines",
        TITLE,
        _TWO_MACHINES_COMMAND,
        "A client has the data, the labels, the first and the last layers; a server has the middle. The cut "
        "`before-relu` is Epipe's: the first convolution and its norm are the client's, and so is all from the pooling "
        "on. `pooled` has the server pool, which sends 49 times less at the second cut. A method is a codec, for "
        "activations and gradients, or a learned bottleneck (`conv`) without a codec. What such trainings come to is "
        "a table of its own, `thinpipe reproduce two-machines-accuracy`.",
        tuple(two_machines_order()),
        published_sheet,
        _bars,
        {"average": average_picture},
    ),
    Section(
        "two-machines-time",
        "two-machines",
        COSTS_TITLE,
        _TWO_MACHINES_COMMAND,
        "The same rows: what a batch takes in all, and who waits for what.",
        tuple(two_machines_order()),
        costs_sheet,
        _bars,
    ),
)

_VERSUS = Section(
    "pipeline-vs-dp",
    "pipeline-vs-dp",
    "Pipeline and data parallel",
    "thinpipe reproduce dp-vs-pipeline",
    "Epipe's rows, trained by data parallel processes (`DistributedDataParallel`) and by pipelines. Rows beside which "
    "nothing is published are one process alone, the batch of a pipeline trained by data parallel processes, or have a "
    "codec at the cuts.",
    tuple(
        f"{model}-{processes}-{batch}"
        for model in ("mobilenetv2", "roberta-base")
        for processes in (2, 3, 4)
        for batch in ("documents*", "b[0-9]*")
    ),
    every_row,
    _bars,
    whole=True,
)

_EARLIER_VERSUS = Section(
    "pipeline-vs-dp-earlier",
    "pipeline-vs-dp",
    "Pipeline and data parallel, earlier settings",
    "thinpipe bench pipeline-vs-dp",
    "The same batch for all. `even` is cut in as many parts as processes; in `client` the first process has the first "
    "and the last layers.",
    tuple(f"{model}-{processes}" for model in ("mobilenetv2", "roberta-base") for processes in (2, 4)),
    earlier_sheet,
    _bars,
)

_DATA_PARALLEL = Section(
    "data-parallel",
    "data-parallel",
    "Data parallel, parts of a step",
    "thinpipe reproduce data-parallel",
    "`DistributedDataParallel` on the models of Epipe's tables, each part of a step timed by itself.",
    tuple(
        f"{model}-{processes}{which}"
        for model in ("mobilenetv2", "vgg13", "roberta-base")
        for processes in (2, 3, 4, 1)
        for which in ("", "-cuda", "-b*")
    ),
    data_parallel_every_row,
    _bars,
    whole=True,
)


_HEAP = Section(
    heap.BENCH,
    heap.BENCH,
    "Memory that is kept",
    f"thinpipe bench {heap.BENCH}",
    "Training on a CPU in a process that keeps the memory of tensors that were freed (`thinpipe.keep_memory()`), as "
    "`thinpipe train` does, and in one that gives it back to the system, as glibc does.",
    tuple(row.name for row in heap.ROWS),
    heap.heap_sheet,
    _bars,
)


def _train_rate(recipe: str) -> Section:
    return Section(
        f"{TRAIN_RATE}-{recipe}",
        TRAIN_RATE,
        f"Training {recipe}, end to end",
        f"thinpipe bench {TRAIN_RATE} --recipe {recipe}",
        f"The recipe `{recipe}`, {RECIPES[recipe].about}: on one device, and cut into stages that share it.",
        (f"{recipe}-one-device", f"{recipe}-cut-*"),
        train_rate_sheet,
        _bars,
        {"accuracy": accuracy_picture},
    )


OPTIONAL = (_EARLIER_VERSUS, *map(_train_rate, RECIPES))
"""Sections of earlier settings, and of what takes hours: those of which nothing is recorded are left out."""

SECTIONS = (
    _section(UNET_MEMORY, memory_sheet),
    _section(AMOEBANET_MEMORY, memory_sheet),
    _section(UNET_SPEED, speed_sheet),
    _section(AMOEBANET_SPEED, speed_sheet),
    _CORES,
    _section(RESNET_SPEED, speed_sheet),
    _section(UNET_TIMELINE, timeline_sheet),
    _LINK,
    *_TWO_MACHINES,
    _VERSUS,
    _DATA_PARALLEL,
    _HEAP,
    _training("digits", "a small network", ""),
    _training("CIFAR-10", "ResNet-18", " --data DIR", _accuracy),
    *_CODECS,
)


def write_page(results: Path, docs: Path) -> Path:
    """Writes ``benchmarks.md`` and its pictures.

    Args:
        results: where the records are.
        docs: the folder that gets the page, and the pictures in its folder ``img``.

    Returns:
        The page.
    """
    pictures = docs / "img"
    pictures.mkdir(parents=True, exist_ok=True)
    parts = [_INTRODUCTION]
    for section in (*SECTIONS, *(each for each in OPTIONAL if each.records(results))):
        records = section.records(results)
        more = conditions_in(results / section.bench)
        parts.append("\n".join(_written(section, records, more, pictures, Path(os.path.relpath(results, docs)))))
    page = docs / "benchmarks.md"
    page.write_text("\n".join(parts))
    return page


def conditions_in(folder: Path) -> list[str]:
    """Reads what the records of a folder do not tell, a note for each paragraph, if somebody wrote it beside them."""
    file = folder / _CONDITIONS
    if not file.exists():
        return []
    return [" ".join(paragraph.split()) for paragraph in file.read_text().split("\n\n")]


def _written(
    section: Section, records: list[Record], more: Sequence[str], pictures: Path, results: Path
) -> Iterator[str]:
    yield f"## {section.title}\n"
    if not records:
        yield f"No results are recorded; `{section.command}` records them.\n"
        yield from section.published()
        if not section.whole and section.rows is None:
            return
    sheet = section.sheet(records)
    yield f"{section.setting}\n"
    yield from section.published() if records else ()
    drawn = {"": section.picture, **section.more} if records else {}
    for what, draw in drawn.items():
        picture = pictures / f"{'-'.join(filter(None, (section.name, what)))}.svg"
        picture.write_text(draw(sheet, records))
        yield f"![{sheet.title}: {what or sheet.measure}](img/{picture.name})\n"
    yield from _lines(sheet, more)
    for run, made in runs_of(records).items():
        links = ", ".join(f"[{record.row}]({record.path(results).as_posix()})" for record in made)
        yield f"- {links}: {run}"
    yield from [""] if records else []


def _lines(sheet: Sheet, more: Sequence[str]) -> Iterator[str]:
    """Writes a table and the notes below it."""
    yield line(sheet.heads)
    yield line(["---"] * len(sheet.heads))
    yield from map(line, sheet.lines)
    yield ""
    yield from (f"- {note}" for note in (*sheet.notes, *more))
    yield ""


def line(cells: Sequence[str]) -> str:
    """Writes a line of a table."""
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def runs_of(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Groups records by how and where they were made."""
    runs: dict[str, list[Record]] = {}
    for record in records:
        environment = "".join(f"{name}={value} " for name, value in record.settings.get("environment", {}).items())
        run = f"`{environment}{record.command}` {record.origin}, on {_machine(record.machine)}"
        runs.setdefault(run, []).append(record)
    return runs


def _machine(machine: Machine) -> str:
    gpus = f"{len(machine.gpus)} x {machine.gpus[0]}, " if machine.gpus else ""
    return f"{gpus}{machine.cores} cores of {machine.cpu}, torch {machine.versions['torch']}"
