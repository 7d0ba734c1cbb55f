"""The words of ``thinpipe bench pipeline-vs-dp`` on the command line."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from thinpipe.bench.link_processes import RankError
from thinpipe.bench.options import Json, Output, Seed, Tiny, kept, progress, report
from thinpipe.bench.shapes import MOBILENET, ROBERTA, Shape
from thinpipe.bench.versus import BENCH, CODEC, Plan, bench_versus
from thinpipe.bench.versus_sheet import versus_sheet
from thinpipe.codecs import codec as parse_codec
from thinpipe.errors import ThinpipeError
from thinpipe.suggest import instead_of

MODELS = (MOBILENET, ROBERTA)
ROWS = {MOBILENET: 32, ROBERTA: 8}

Pixels: TypeAlias = Annotated[int, typer.Option(min=32, help="Height and width of images.")]
Tokens: TypeAlias = Annotated[int, typer.Option(min=1, max=512, help="Of a row of text.")]
Threads: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Of each process, which stays on as many cores of its own where there are enough.")
]
Rounds: TypeAlias = Annotated[int, typer.Option(min=1, help="How often each variant is timed; more are less noisy.")]


def versus_command(
    *,
    models: Annotated[str, typer.Option(help=f"Of {', '.join(MODELS)}.")] = ",".join(MODELS),
    processes: Annotated[str, typer.Option(help="How many, 2 or more; one row for each.")] = "2,4",
    batch: Annotated[
        int | None, typer.Option(min=1, help="Rows of a batch, all processes together (default: 32 images, 8 texts).")
    ] = None,
    pixels: Pixels = 224,
    tokens: Tokens = 128,
    chunks: Annotated[int, typer.Option(min=1, help="Micro-batches of a pipeline.")] = 4,
    codec: Annotated[str, typer.Option(help="At the cuts of pipelines that have one, both ways.")] = CODEC,
    schedule: Annotated[str, typer.Option(help="Of pipelines: gpipe, 1f1b or zb.")] = "1f1b",
    threads: Threads = 1,
    rounds: Rounds = 3,
    tiny: Tiny = False,
    seed: Seed = 0,
    json: Json = False,
    output: Output = None,
) -> None:
    """A batch trained by a pipeline and by data parallel processes: time, and bytes.

    Pipelines have an even partition, by measured time, and a client's, which has the first and the last layers while
    other processes have the middle; each with and without a codec. One process alone is what speed-ups are over.

    Example: [bold]thinpipe bench pipeline-vs-dp --models roberta-base --processes 2 --threads 2[/bold]
    """
    try:
        parse_codec(codec)
    except ThinpipeError as error:
        raise typer.BadParameter(str(error)) from error
    plans = [
        Plan(
            Shape.of(name, pixels=pixels, tokens=tokens, tiny=tiny),
            processes=count,
            rows=batch or (8 if tiny else ROWS[name]),
            chunks=chunks,
            codec=codec,
            schedule=schedule,
            threads=threads,
            rounds=rounds,
            profile_seconds=0.1 if tiny else 2.0,
            seed=seed,
        )
        for name in named(models, MODELS)
        for count in numbers(processes, least=2)
    ]
    for plan in plans:
        if plan.rows % plan.processes:
            raise typer.BadParameter(
                f"{plan.rows} rows are not the same share for {plan.processes} processes; "
                f"write --batch {plan.rows + -plan.rows % plan.processes}"
            )
    records = []
    try:
        with progress(sum(plan.steps for plan in plans)) as done:
            for plan in plans:
                records.append(kept(bench_versus(plan, tick=done), output=output, tiny=tiny))
    except (RankError, ImportError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    report(BENCH, versus_sheet(records), records, output=output, tiny=tiny, as_json=json)


def named(text: str, known: tuple[str, ...]) -> list[str]:
    """Reads names, each once.

    Raises:
        typer.BadParameter: one is not known.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"no model is called {name!r}; {instead_of(name, known)}")
    return names


def numbers(text: str, *, least: int) -> list[int]:
    """Reads numbers of processes.

    Raises:
        typer.BadParameter: something is no number, or too small.
    """
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not word.isdigit() or int(word) < least:
            raise typer.BadParameter(f"{word!r} is no number of processes, {least} or more; write --processes 2,4")
    return [int(word) for word in words]
