"""The words of ``thinpipe bench unet-memory`` and ``amoebanet-memory`` on the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from thinpipe.bench.memory import ON_CPU, STEPS, measure_memory
from thinpipe.bench.naming import named
from thinpipe.bench.options import Json, Output, Rows, Seed, Tiny, Where, chosen, kept, progress, report
from thinpipe.bench.published_sheet import memory_sheet
from thinpipe.bench.rows import AMOEBANET_MEMORY, UNET_MEMORY
from thinpipe.bench.table import Row, Table
from thinpipe.bench.workload import tiny as tiny_table

Clear: TypeAlias = Annotated[
    bool, typer.Option("--clear-gradients", help="Clear gradients between the two steps; the published runs did not.")
]
Limit: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="GiB of each GPU that may be used, 0 for all there are; cuDNN works in whatever is free (default: the 22 "
        "of a published card for baseline, else all there are).",
    ),
]


def _memory_command(table: Table, about: str, size: str) -> Callable[..., None]:
    """Makes the command of a table."""

    def command(
        *,
        rows: Rows = None,
        devices: Where = None,
        clear: Clear = False,
        limit: Limit = None,
        tiny: Tiny = False,
        seed: Seed = 0,
        json: Json = False,
        output: Output = None,
    ) -> None:
        _measure(table, rows, devices, clear=clear, limit=limit, tiny=tiny, seed=seed, as_json=json, output=output)

    command.__doc__ = f"""{about}, beside torchgpipe's table.

    {size}. Where all stages share a GPU the record's name says so. PYTORCH_CUDA_ALLOC_CONF sets the allocator;
    published runs had the default one.

    Example: [bold]thinpipe bench {table.bench} --rows baseline,pipeline-1 --devices cuda[/bold]
    """
    return command


unet_memory_command = _memory_command(UNET_MEMORY, "Peak memory of U-Nets", "They have up to 15.8 billion parameters")
amoebanet_memory_command = _memory_command(
    AMOEBANET_MEMORY, "Peak memory of AmoebaNet-D", "It has up to 1.8 billion parameters"
)


def _measure(
    table: Table,
    names: str | None,
    devices: str | None,
    *,
    clear: bool,
    limit: float | None,
    tiny: bool,
    seed: int,
    as_json: bool,
    output: Path | None,
) -> None:
    table = tiny_table(table) if tiny else table
    rows, places = chosen(table, names, devices)
    if places.cpu and not tiny:
        raise typer.BadParameter(f"{ON_CPU}; use --devices cuda, or --tiny to try the command")
    with progress(STEPS * len(rows)) as done:
        records = []
        for row in rows:
            tick, capped = partial(done, row.name), _capped(row, limit)
            record = measure_memory(table, capped, places.take(row.n), clear=clear, seed=seed, tick=tick)
            different = ("tiny" * tiny, _limit_named(row, capped), "cleared" * clear)
            records.append(kept(named(record, *different), output=output, tiny=tiny))
    sheet = memory_sheet(replace(table, rows=tuple(rows)), records)
    report(table.bench, sheet, records, output=output, tiny=tiny, as_json=as_json)


def _capped(row: Row, limit: float | None) -> Row:
    """Gives a row the limit that was asked for: its own by default, and none for 0."""
    return row if limit is None else replace(row, limit=limit or None)


def _limit_named(row: Row, capped: Row) -> str:
    if capped.limit == row.limit:
        return ""
    return "no-limit" if capped.limit is None else f"limit-{capped.limit:g}"
