"""The words of ``thinpipe bench unet-speed``, ``resnet-speed`` and ``amoebanet-speed`` on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from thinpipe.bench.cores import AUTO, BENCH, Workers, measure_cell
from thinpipe.bench.link_processes import RankError
from thinpipe.bench.naming import named
from thinpipe.bench.options import (
    AsPublished,
    Epochs,
    Json,
    Output,
    Rows,
    Seed,
    Steps,
    Tiny,
    Where,
    chosen,
    kept,
    progress,
    report,
)
from thinpipe.bench.published_sheet import speed_sheet
from thinpipe.bench.rows import AMOEBANET_SPEED, RESNET_SPEED, UNET_SPEED
from thinpipe.bench.sheet import cores_sheet
from thinpipe.bench.speed import Length, measure_speed
from thinpipe.bench.table import Mode, Table
from thinpipe.bench.workload import resized, with_batch
from thinpipe.bench.workload import tiny as tiny_table
from thinpipe.help import MORE, HelpAll

USUAL = Length(3, 10)
"""How long a row is measured unless more is asked for."""

Autotune: TypeAlias = Annotated[
    bool, typer.Option("--cudnn-benchmark", help="Let cuDNN try its algorithms out; the published runs did not.")
]


def _speed_command(published: Table, about: str) -> Callable[..., None]:
    """Makes the command of a table whose rows are measured as they were published."""

    def command(
        *,
        rows: Rows = None,
        devices: Where = None,
        steps: Steps = 10,
        epochs: Epochs = 3,
        published_epochs: AsPublished = False,
        autotune: Autotune = False,
        tiny: Tiny = False,
        seed: Seed = 0,
        json: Json = False,
        output: Output = None,
    ) -> None:
        length = Length.of(epochs, steps, published=published_epochs)
        table = tiny_table(published) if tiny else published
        _measure(table, rows, devices, length, autotune=autotune, tiny=tiny, seed=seed, as_json=json, output=output)

    command.__doc__ = f"""{about}, beside torchgpipe's table.

    Whatever differs from its row is in a record's name: another length, or one GPU for several stages.

    Example: [bold]thinpipe bench {published.bench} --rows baseline,pipeline-1 --devices cuda[/bold]
    """
    return command


unet_speed_command = _speed_command(UNET_SPEED, "Throughput of a U-Net (233M parameters)")
resnet_speed_command = _speed_command(RESNET_SPEED, "Throughput of ResNet-101")


def amoebanet_speed_command(
    *,
    rows: Rows = None,
    devices: Where = None,
    fixed_batch: Annotated[
        int | None, typer.Option(min=1, help="The batch of every row (default: the published one, which grows).")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Another AmoebaNet-D, as 18,64 (default: 18,256).")] = None,
    pixels: Annotated[int | None, typer.Option(min=32, help="Height and width of images (default: 224).")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="always, except_last or never, for all rows (default: as published, by row)."),
    ] = None,
    steps: Steps = 10,
    epochs: Epochs = 3,
    published_epochs: AsPublished = False,
    autotune: Autotune = False,
    tiny: Tiny = False,
    seed: Seed = 0,
    json: Json = False,
    output: Output = None,
    help_all: HelpAll = False,  # noqa: ARG001 - it does everything by itself
    rounds: Annotated[
        int, typer.Option(min=1, rich_help_panel=MORE, help="On CPU cores: how often each variant is timed.")
    ] = 5,
    workers: Annotated[
        Workers,
        typer.Option(
            rich_help_panel=MORE, help="On CPU cores: what our stages are, processes of one core each or threads."
        ),
    ] = Workers.PROCESSES,
    schedule: Annotated[
        str,
        typer.Option(
            rich_help_panel=MORE,
            help="On CPU cores: of our processes, gpipe, 1f1b or zb (auto: zb if m < n, else 1f1b).",
        ),
    ] = AUTO,
    reserve: Annotated[
        int,
        typer.Option(
            min=0,
            rich_help_panel=MORE,
            help="On CPU cores: MiB of memory that each process asks for before it is timed.",
        ),
    ] = 0,
) -> None:
    """Throughput of AmoebaNet-D, beside torchgpipe's table.

    A row has n stages and m micro-batches. On CPU cores each cell is timed in turns with the bare network and with
    torchgpipe, where it is installed, and set beside the best that its stages allow. Processes recompute all
    micro-batches or none, so that except_last is run as always there, by every variant alike.

    Example: [bold]thinpipe bench amoebanet-speed --devices cpu:8 --model 18,64 --pixels 64 --fixed-batch 64[/bold]
    """
    variant = _Variant(model=model, pixels=pixels, batch=fixed_batch, checkpoint=checkpoint)
    table = variant.of(tiny_table(AMOEBANET_SPEED) if tiny else AMOEBANET_SPEED)
    chosen_rows, places = chosen(table, rows, devices)
    if not places.cpu:
        length = Length.of(epochs, steps, published=published_epochs)
        _measure(
            table,
            rows,
            devices,
            length,
            different=variant.different(_Variant()),
            autotune=autotune,
            tiny=tiny,
            seed=seed,
            as_json=json,
            output=output,
        )
        return
    seconds = 0.05 if tiny else 2.0
    different = [
        "tiny" * tiny,
        *variant.different(_ON_CORES),
        "threads" * (workers is Workers.THREADS),
        schedule * (schedule != AUTO),
        f"seed-{seed}" * bool(seed),
    ]
    records = []
    with progress((rounds + 1) * len(chosen_rows)) as done:
        for row in chosen_rows:
            track = partial(_ticking, partial(done, row.name))
            try:
                cell = measure_cell(
                    table,
                    row,
                    rounds=rounds,
                    workers=workers,
                    schedule=schedule,
                    reserve=reserve,
                    profile_seconds=seconds,
                    seed=seed,
                    track=track,
                )
            except RankError as error:
                typer.echo(f"row {row.name}: {error}", err=True)
                raise typer.Exit(1) from error
            cell = replace(cell, row="-".join(filter(None, (cell.row, *different))))
            records.append(kept(cell, output=output, tiny=tiny))
    report(BENCH, cores_sheet(table, records), records, output=output, tiny=tiny, as_json=json)


@dataclass(frozen=True, kw_only=True)
class _Variant:
    """What AmoebaNet-D's table is changed to; None is what was published.

    Args:
        model: layers and filters, as 18,64.
        pixels: of images.
        batch: of every row.
        checkpoint: of every row.
    """

    model: str | None = None
    pixels: int | None = None
    batch: int | None = None
    checkpoint: str | None = None

    def of(self, table: Table) -> Table:
        """Changes a table."""
        table = replace(table, pixels=self.pixels or table.pixels)
        if self.model is not None:
            table = _with_model(table, self.model)
        if self.batch is not None:
            table = with_batch(table, self.batch)
        if self.checkpoint is not None:
            mode = _mode(self.checkpoint)
            table = replace(table, rows=tuple(replace(row, checkpoint=mode) for row in table.rows))
        return table

    def different(self, usual: _Variant) -> list[str]:
        """Says in a record's name what is not as usual."""
        if self == _Variant() != usual:
            return ["published"]
        words = {"model": "{}", "pixels": "{}px", "batch": "batch-{}", "checkpoint": "{}"}
        mine, theirs = asdict(self), asdict(usual)
        return [
            f"published-{name}" if mine[name] is None else word.format(mine[name]).replace(",", "-").replace(" ", "")
            for name, word in words.items()
            if mine[name] != theirs[name]
        ]


_ON_CORES = _Variant(model="18,64", pixels=128, batch=64, checkpoint="never")
"""The table that is on the page of benchmarks: a published one takes hours on cores."""


def _ticking(tick: Callable[[], None], turns: range) -> Iterator[int]:
    for turn in turns:
        yield turn
        tick()


def _with_model(table: Table, text: str) -> Table:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(f"--model {text!r} is no AmoebaNet-D; write layers and filters, as 18,64")
    try:
        return resized(table, tuple(map(int, parts)))
    except ValueError as error:
        raise typer.BadParameter(f"--model {text}: {error}") from error


def _mode(text: str) -> Mode:
    modes: tuple[Mode, ...] = ("always", "except_last", "never")
    for mode in modes:
        if mode == text:
            return mode
    raise typer.BadParameter(f"--checkpoint {text!r} is none of {', '.join(modes)}")


def _measure(
    table: Table,
    names: str | None,
    devices: str | None,
    length: Length,
    *,
    different: Sequence[str] = (),
    autotune: bool,
    tiny: bool,
    seed: int,
    as_json: bool,
    output: Path | None,
) -> None:
    rows, places = chosen(table, names, devices)
    with progress(length.epochs * len(rows)) as done:
        records = []
        for row in rows:
            tick = partial(done, row.name)
            record = measure_speed(
                table, row, places.take(row.n), length=length, autotune=autotune, seed=seed, tick=tick
            )
            words = ("tiny" * tiny, *different, length.different(USUAL), "autotuned" * autotune)
            records.append(kept(named(record, *words), output=output, tiny=tiny))
    sheet = speed_sheet(replace(table, rows=tuple(rows)), records)
    report(table.bench, sheet, records, output=output, tiny=tiny, as_json=as_json)
