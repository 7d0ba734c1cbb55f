"""The words of ``thinpipe reproduce two-machines`` on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table as Grid

from thinpipe.bench.network import obstacle
from thinpipe.bench.options import Json, Output, Seed, Tiny, kept, progress
from thinpipe.bench.record import Record
from thinpipe.bench.sheet import Sheet
from thinpipe.errors import ThinpipeError
from thinpipe.finite import dumps
from thinpipe.help import MORE, HelpAll
from thinpipe.reproduce.two_machines.documents import CHUNKS, CUT, NONE
from thinpipe.reproduce.two_machines.row import (
    BOTTLENECKS,
    CODECS,
    CUTS,
    FULL,
    IMAGES,
    MADE_UP,
    TINY_BOTTLENECKS,
    Row,
    table,
)
from thinpipe.reproduce.two_machines.sheet import costs_sheet, over_none, published_sheet

if TYPE_CHECKING:
    from thinpipe.reproduce.two_machines.wire import Wire

_WIDTH = 160
_TINY_CHUNKS = "4"
_VIA = ("namespaces", "emulated")


def two_machines_command(
    *,
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(help=f"Of the link each way, as 4gbit,1gbit,100mbit; may be repeated (default: {FULL})."),
    ] = None,
    cut: Annotated[
        str,
        typer.Option(
            help="before-relu, which is Epipe's; pooled, which sends 49 times less at the second cut; or "
            "before-relu,pooled."
        ),
    ] = CUT,
    codecs: Annotated[
        str, typer.Option(help="For activations and gradients; A/B is A at the first cut and B at the second.")
    ] = ",".join(CODECS),
    bottlenecks: Annotated[
        str | None,
        typer.Option(
            help="Learned, without a codec, one for each cut, or none (default: Epipe's two, "
            f"{' and '.join(BOTTLENECKS)}; a small one with --tiny). They are not fitted: time does not depend on it."
        ),
    ] = None,
    chunks: Annotated[
        str | None, typer.Option(help=f"Micro-batches (default: {','.join(map(str, CHUNKS))}; 4 with --tiny).")
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Only rows whose names match one of these, as '4gbit-*-8,*-none-*'.")
    ] = None,
    batch: Annotated[int, typer.Option(rich_help_panel=MORE, min=1, help="Samples in a batch.")] = 64,
    batches: Annotated[
        int | None,
        typer.Option(
            min=1, help="Batches of each row that count, after three that warm up (default: 10; 3 with --tiny)."
        ),
    ] = None,
    via: Annotated[
        str | None,
        typer.Option(
            help="namespaces: a wire that the kernel slows (root, iproute2); emulated: the loopback, held back by both "
            "ends (default: namespaces, where they can be)."
        ),
    ] = None,
    connect: Annotated[
        str | None, typer.Option(rich_help_panel=MORE, help="A server that is there, as host:port, by thinpipe serve.")
    ] = None,
    images: Annotated[
        str,
        typer.Option(
            rich_help_panel=MORE,
            help="made-up, with random weights; or cifar10, with pretrained ones, which takes as long.",
        ),
    ] = MADE_UP,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=MORE, help="With --images cifar10: the folder of data sets (default: the usual places)."
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure rows that are recorded already, too.")] = False,
    tiny: Tiny = False,
    seed: Seed = 0,
    json: Json = False,
    output: Output = None,
    help_all: HelpAll = False,  # noqa: ARG001 - it does everything by itself
    key: Annotated[
        str | None, typer.Option(rich_help_panel=MORE, help="With --connect: this client's .key file.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(rich_help_panel=MORE, help="With --connect: the server's .pub file.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=MORE, help="Of the server that is started, as cuda (default: a GPU if there is one)."
        ),
    ] = None,
    client_threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=MORE,
            help="Cores of the client (default: all but two, or half if the server computes on the other half).",
        ),
    ] = None,
) -> None:
    """Bytes, bandwidth and time of a batch between a client and a server.

    Epipe's figures stand beside ours. MobileNetV2 at 224 pixels: the client has the first and the last
    layers, the server the middle. Each row is recorded as soon as it is measured, and one that is recorded is not
    measured again. What such a training comes to is thinpipe reproduce two-machines-accuracy.

    Example: [bold]thinpipe reproduce two-machines --bandwidth 4gbit,1gbit,100mbit[/bold]
    """
    small = ",".join(TINY_BOTTLENECKS if tiny else BOTTLENECKS) if bottlenecks is None else bottlenecks
    chosen = _rows(bandwidth or [FULL], cut, codecs, small, chunks or (_TINY_CHUNKS if tiny else None), rows)
    _verify_images(images, data_dir, tiny=tiny)
    via = _verified(via, connect, key, server, device)
    folder = output if output is not None or tiny else Path("results")
    records: list[Record] = []
    try:
        from thinpipe.reproduce.two_machines import plan as plans
        from thinpipe.reproduce.two_machines import run, wire  # they need ZeroMQ

        keys = None if key is None or server is None else wire.Keys(key, server)
        given = None if connect is None else wire.GivenWire(connect, keys)
        on_cpu = given is None and (device == "cpu" or (device is None and not torch.cuda.is_available()))
        own, theirs = plans.threads(client_threads, shared=on_cpu)
        plan = plans.Plan(
            rows=chosen,
            tiny=tiny,
            batch=batch,
            batches=batches or (3 if tiny else 10),
            images=images,
            data_dir=None if data_dir is None else str(data_dir),
            device=device,
            client_threads=own,
            server_threads=theirs,
            seed=seed,
        )
        with _wire(given, via) as line, progress(len(chosen)) as done:
            old: dict[Row, Record] = {}
            if folder is not None and not again:
                found = {row: plans.recorded(plan, row, line, folder) for row in chosen}
                old = {row: record for row, record in found.items() if record is not None}
            records += old.values()
            for row in old:
                done(row.name)

            def keep(record: Record) -> None:
                records.append(kept(record, output=output, tiny=tiny))
                done(record.row)

            run.measured(plan, [row for row in chosen if row not in old], line, keep, folder=folder, again=again)
    except (ThinpipeError, ImportError, OSError) as error:
        typer.echo(str(error), err=True)
        if records and folder is not None:
            typer.echo(f"{len(records)} rows are recorded in {folder}; the same command goes on after them", err=True)
        raise typer.Exit(1) from error
    by_name = {record.row: record for record in records}
    _report([by_name[row.name] for row in chosen], folder=folder, as_json=json)


@contextmanager
def _wire(given: Wire | None, via: str | None) -> Iterator[Wire]:
    from thinpipe.reproduce.two_machines.wire import wired

    if given is not None:
        yield given
        return
    assert via is not None
    with wired(via) as line:
        yield line


def _rows(
    bandwidths: Sequence[str], cut: str, codecs: str, bottlenecks: str, chunks: str | None, names: str | None
) -> tuple[Row, ...]:
    """Reads which rows are asked for."""
    rates = ["".join(text.lower().split()) for word in bandwidths for text in word.split(",")]
    counts = list(CHUNKS) if chunks is None else [_count(word) for word in chunks.split(",")]
    cuts = _words(cut)
    for word in cuts:
        if word not in CUTS:
            raise typer.BadParameter(f"there is no cut {word!r:.40}; there are {', '.join(CUTS)}")
    small = [word for word in _words(bottlenecks) if word != NONE]
    found = table(dict.fromkeys(rates), cuts, _words(codecs), small, dict.fromkeys(counts))
    for row in found:
        try:
            row.verify()
        except ValueError as error:  # a SpecError is one
            raise typer.BadParameter(str(error)) from error
    if names is None:
        return found
    wanted = tuple(row for row in found if any(fnmatchcase(row.name, pattern) for pattern in _words(names)))
    if not wanted:
        raise typer.BadParameter(f"no row matches {names!r}; there are {', '.join(row.name for row in found)}")
    return wanted


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",")))


def _count(word: str) -> int:
    if not word.strip().isdecimal() or not 1 <= int(word) <= 4096:
        raise typer.BadParameter(f"--chunks are whole numbers from 1 to 4096, as 1,4,8; got {word!r}")
    return int(word)


def _verify_images(images: str, data_dir: Path | None, *, tiny: bool) -> None:
    if images not in IMAGES:
        raise typer.BadParameter(f"there are no images {images!r:.40}; use {' or '.join(IMAGES)}")
    if tiny and images != MADE_UP:
        raise typer.BadParameter("--tiny has images of its own; leave out --images")
    if data_dir is not None and images == MADE_UP:
        raise typer.BadParameter("--data-dir is for real images; add --images cifar10")


def _verified(
    via: str | None, connect: str | None, key: str | None, server: str | None, device: str | None
) -> str | None:
    """Checks options that concern each other, and chooses the wire."""
    if connect is not None:
        if via is not None or device is not None:
            raise typer.BadParameter("--via and --device are for a server that is started here; --connect has its own")
        if (key is None) != (server is None):
            raise typer.BadParameter("--key and --server belong together: this client's keys, and the server's")
        return None
    if key is not None or server is not None:
        raise typer.BadParameter("--key and --server concern a server that is there; add --connect host:port")
    if via not in (None, *_VIA):
        raise typer.BadParameter(f"there is no way {via!r:.40}; use {' or '.join(_VIA)}")
    if device is not None:
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise typer.BadParameter(f"there is no device {device!r:.40} here; use cpu or cuda") from error
    if via == "emulated":
        return via
    why_not = obstacle()
    if why_not is not None and via is not None:
        raise typer.BadParameter(f"there can be no namespaces: {why_not}; use --via emulated")
    return "emulated" if why_not is not None else "namespaces"


def _report(records: Sequence[Record], *, folder: Path | None, as_json: bool) -> None:
    sheets = published_sheet(records), costs_sheet(records)
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=_WIDTH)
    for sheet in sheets:
        console.print(_grid(sheet))
        for note in sheet.notes:
            console.print(note)
    if folder is not None:
        for record in records:
            console.print(f"recorded in {record.path(folder)}", soft_wrap=True)
    if as_json:
        typer.echo(dumps(_json(sheets[0], records)))


def _grid(sheet: Sheet) -> Grid:
    grid = Grid(*sheet.heads, title=sheet.title)
    for line in sheet.lines:
        grid.add_row(*line)
    return grid


def _json(sheet: Sheet, records: Sequence[Record]) -> dict[str, object]:
    """Says everything; with it, how many times as long a batch takes with none as with block:4, where both were run."""
    gains = {record.row: over_none(records, record) for record in records if record.settings["codec"] == "block:4"}
    known = [gain for gain in gains.values() if gain is not None]
    return {
        "bench": "two-machines",
        "none_over_block4": round(min(known), 3) if known else None,
        "none_over_block4_by_row": gains,
        "table": [dict(zip(sheet.heads, line, strict=True)) for line in sheet.lines],
        "rows": [record.entries() for record in records],
    }
