"""The words of ``thinpipe bench unet-memory`` and ``amoebanet-memory`` on the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from thinpipe.bench.memory import ON_CPU, STEPS, measure_memory
from thinpipe.bench.options import Json, Output, Rows, Seed, Tiny, Where, chosen, kept, progress, report
from thinpipe.bench.rows import AMOEBANET_MEMORY, UNET_MEMORY
from thinpipe.bench.sheet import memory_sheet
from thinpipe.bench.table import Table
from thinpipe.bench.workload import tiny as tiny_table

Clear: TypeAlias = Annotated[
    bool, typer.Option("--clear-gradients", help="Clear gradients between the two steps; the published runs did not.")
]
Limit: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        help="GiB of each GPU that may be used; cuDNN works in whatever is free, and the published cards had 22 "
        "(default: all there are).",
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

    command.__doc__ = f"""{about}, beside torchgpipe's published table.

    {size}.

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
            tick = partial(done, row.name)
            record = measure_memory(table, row, places.take(row.n), clear=clear, limit=limit, seed=seed, tick=tick)
            records.append(kept(record, output=output, tiny=tiny))
    report(table.bench, memory_sheet(table, records), records, output=output, tiny=tiny, as_json=as_json)
