"""The words of ``thinpipe bench heap`` on the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from thinpipe.bench.heap import BENCH, ROWS, TINY, heap_sheet, measure_heap
from thinpipe.bench.link_processes import RankError
from thinpipe.bench.options import Json, Output, Seed, Tiny, kept, progress, report


def heap_command(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is timed; more are less noisy.")] = 7,
    seed: Seed = 0,
    tiny: Tiny = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """What training on a CPU gains by keeping memory that was freed.

    As thinpipe train and thinpipe serve do, and thinpipe.keep_memory() in a program of yours. Linux with glibc only.

    Example: [bold]thinpipe bench heap --rounds 15[/bold]
    """
    rows, records = TINY if tiny else ROWS, []
    with progress(len(rows)) as done:
        for row in rows:
            try:
                record = measure_heap(row, rounds=rounds, seed=seed)
            except RankError as error:
                raise typer.BadParameter(str(error)) from error
            records.append(kept(record, output=output, tiny=tiny))
            done(row.name)
    report(BENCH, heap_sheet(records), records, output=output, tiny=tiny, as_json=json)
