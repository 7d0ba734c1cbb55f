"""The words of ``thinpipe bench data-parallel`` on the command line."""

from __future__ import annotations

from typing import Annotated

import torch
import typer

from thinpipe.bench.data_parallel import BENCH, Plan, bench_data_parallel
from thinpipe.bench.data_parallel_sheet import data_parallel_sheet
from thinpipe.bench.documents import TIMED
from thinpipe.bench.link_processes import RankError
from thinpipe.bench.options import Json, Output, Seed, Tiny, kept, progress, report
from thinpipe.bench.shapes import MOBILENET, NAMES, ROBERTA, VGG, Shape
from thinpipe.bench.versus_command import Pixels, Place, Rounds, Threads, Tokens, named, numbers

ROWS = {"cpu": {MOBILENET: 16, VGG: 4, ROBERTA: 4}, "cuda": {MOBILENET: 64, VGG: 64, ROBERTA: 16}}


def data_parallel_command(
    *,
    models: Annotated[str, typer.Option(help=f"Of {', '.join(NAMES)}.")] = ",".join(NAMES),
    processes: Annotated[
        str | None,
        typer.Option(help="How many, as 2,4; one row for each (default: as many as in Epipe's rows)."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rows of the batch of each process (default: 16 of MobileNetV2, 4 of VGG13 and of RoBERTa; on a GPU "
            "Epipe's 64, 64 and 16).",
        ),
    ] = None,
    pixels: Pixels = 224,
    tokens: Tokens = 128,
    device: Place = "cpu",
    threads: Threads = 1,
    rounds: Rounds = 5,
    tiny: Tiny = False,
    seed: Seed = 0,
    json: Json = False,
    output: Output = None,
) -> None:
    """Where the time of a data parallel step goes.

    To data, forward, backward, all-reduce and optimizer; by SGD and by AdamW.

    Example: [bold]thinpipe bench data-parallel --models roberta-base --processes 2,4 --threads 4[/bold]
    """
    if device not in ROWS or (device == "cuda" and not torch.cuda.is_available()):
        raise typer.BadParameter(
            f"there is no device {device!r} here; write --device cpu, or cuda where there is a GPU"
        )
    plans = [
        Plan(
            Shape.of(name, pixels=pixels, tokens=tokens, tiny=tiny),
            processes=count,
            rows=batch or (4 if tiny else ROWS[device][name]),
            device=device,
            threads=threads,
            rounds=rounds,
            seed=seed,
        )
        for name in named(models, NAMES)
        for count in (_documents(name) if processes is None else numbers(processes, least=1))
    ]
    records = []
    try:
        with progress(sum(plan.turns for plan in plans)) as done:
            for plan in plans:
                records.append(kept(bench_data_parallel(plan, tick=done), output=output, tiny=tiny))
    except RankError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    report(BENCH, data_parallel_sheet(records), records, output=output, tiny=tiny, as_json=json)


def _documents(model: str) -> list[int]:
    """Lists on how many GPUs Epipe timed a model."""
    return sorted({row.devices for row in TIMED if row.model == model})
