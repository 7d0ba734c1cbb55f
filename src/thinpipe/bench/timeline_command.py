"""The words of ``thinpipe bench unet-timeline`` on the command line."""

from __future__ import annotations

from dataclasses import replace

import typer

from thinpipe.bench.options import Epochs, Json, Output, Rows, Seed, Steps, Tiny, Where, chosen, kept, progress, report
from thinpipe.bench.rows import UNET_TIMELINE
from thinpipe.bench.sheet import timeline_sheet
from thinpipe.bench.speed import Length
from thinpipe.bench.timeline import NOT_RUN, ROW, measure_timeline
from thinpipe.bench.workload import tiny as tiny_table


def unet_timeline_command(
    *,
    rows: Rows = None,
    devices: Where = None,
    steps: Steps = 4,
    epochs: Epochs = 3,
    tiny: Tiny = False,
    seed: Seed = 0,
    json: Json = False,
    output: Output = None,
) -> None:
    """How busy the devices of a U-Net are, beside torchgpipe's published ablation.

    The U-Net has four stages.

    Example: [bold]thinpipe bench unet-timeline --devices cuda[/bold]
    """
    if rows not in (None, ROW):
        raise typer.BadParameter(f"the one row to run is {ROW}, {NOT_RUN}")
    table = tiny_table(UNET_TIMELINE) if tiny else UNET_TIMELINE
    measured = replace(table, rows=(replace(table.rows[-1], name=ROW),))
    (row,), places = chosen(measured, ROW, devices)
    with progress(epochs) as done:
        record = measure_timeline(
            table, places.take(row.n), length=Length(epochs, steps or None), seed=seed, tick=lambda: done(ROW)
        )
    kept(record, output=output, tiny=tiny)
    report(table.bench, timeline_sheet(table, [record]), [record], output=output, tiny=tiny, as_json=json)
