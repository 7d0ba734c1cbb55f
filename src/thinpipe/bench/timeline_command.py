"""The words of ``thinpipe bench unet-timeline`` on the command line."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import typer

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
from thinpipe.bench.published_sheet import timeline_sheet
from thinpipe.bench.rows import UNET_TIMELINE
from thinpipe.bench.speed import Length
from thinpipe.bench.timeline import NOT_RUN, measure_timeline
from thinpipe.bench.workload import tiny as tiny_table

USUAL = Length(3, 4)
"""How long a row is measured unless more is asked for."""


def unet_timeline_command(
    *,
    rows: Rows = None,
    devices: Where = None,
    steps: Steps = 4,
    epochs: Epochs = 3,
    published_epochs: AsPublished = False,
    tiny: Tiny = False,
    seed: Seed = 0,
    json: Json = False,
    output: Output = None,
) -> None:
    """How busy the devices of a U-Net are, beside torchgpipe's.

    The U-Net has four stages.

    Example: [bold]thinpipe bench unet-timeline --devices cuda[/bold]
    """
    table = tiny_table(UNET_TIMELINE) if tiny else UNET_TIMELINE
    ours = tuple(row for row in table.rows if row.published.throughput is None)
    for name in (rows or "").split(","):
        if name in {row.name for row in table.rows} - {row.name for row in ours}:
            raise typer.BadParameter(f"{name} is not among the rows that can be run: {NOT_RUN}")
    chosen_rows, places = chosen(replace(table, rows=ours), rows, devices)
    length = Length.of(epochs, steps, published=published_epochs)
    records = []
    with progress(length.epochs * len(chosen_rows)) as done:
        for row in chosen_rows:
            tick = partial(done, row.name)
            record = measure_timeline(table, row, places.take(row.n), length=length, seed=seed, tick=tick)
            record = named(record, "tiny" * tiny, length.different(USUAL))
            records.append(kept(record, output=output, tiny=tiny))
    report(table.bench, timeline_sheet(table, records), records, output=output, tiny=tiny, as_json=json)
