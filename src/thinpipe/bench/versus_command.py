"""The words of ``thinpipe bench pipeline-vs-dp`` on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import torch
import typer

from thinpipe.bench.documents import DDP, TORCHGPIPE
from thinpipe.bench.link_processes import RankError
from thinpipe.bench.options import Json, Output, Seed, Tiny, kept, progress, report
from thinpipe.bench.shapes import MOBILENET, ROBERTA, Shape
from thinpipe.bench.versus import BENCH, bench_versus, steps_of
from thinpipe.bench.versus_cut import Manner
from thinpipe.bench.versus_plan import (
    CODEC,
    NONE,
    PIPELINES,
    Plan,
    Training,
    Variant,
    documents_variants,
    own_variants,
    refusal,
)
from thinpipe.bench.versus_sheet import versus_sheet
from thinpipe.bench.workload import has_torchgpipe
from thinpipe.codecs import codec as parse_codec
from thinpipe.errors import ThinpipeError
from thinpipe.help import MORE, HelpAll
from thinpipe.suggest import instead_of

MODELS = (MOBILENET, ROBERTA)
_DIVISORS = (1, 2, 4, 8)
_TINY_DIVISOR = 8

Pixels: TypeAlias = Annotated[int, typer.Option(min=32, help="Height and width of images.")]
Tokens: TypeAlias = Annotated[int, typer.Option(min=1, max=512, help="Of a row of text.")]
Threads: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Of each process, which stays on as many cores of its own where there are enough.")
]
Rounds: TypeAlias = Annotated[int, typer.Option(min=1, help="How often each variant is timed; more are less noisy.")]
Place: TypeAlias = Annotated[str, typer.Option("--device", help="cpu, or cuda, which processes may have to share.")]


@dataclass(frozen=True)
class _Asked:
    """What the command line says about batches and pipelines."""

    batch: int | None
    chunks: int | None
    divide: int
    pipelines: tuple[str, ...] | None
    codec: str | None

    def variants(self, model: str, processes: int) -> tuple[Variant, ...]:
        """Lists what is trained by so many processes; nothing where Epipe has no such rows."""
        if self.batch is None:
            return documents_variants(model, processes, divided=self.divide, pipelines=self.pipelines, codec=self.codec)
        return own_variants(
            processes,
            self.batch,
            self.chunks or 4,
            pipelines=self.pipelines or (Manner.CLIENT_TIMED, Manner.EVEN_TIMED),
            codec=self.codec,
        )

    @property
    def label(self) -> str:
        """In the names of rows."""
        batch = "documents" if self.batch is None else f"b{self.batch}-c{self.chunks or 4}"
        return "-".join((batch, *(self.pipelines or ())))


def versus_command(
    *,
    models: Annotated[str, typer.Option(help=f"Of {', '.join(MODELS)}.")] = ",".join(MODELS),
    processes: Annotated[str, typer.Option(help="How many; Epipe's rows with so many.")] = "2,3,4",
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Rows of one batch for all (default: Epipe's)."),
    ] = None,
    chunks: Annotated[int | None, typer.Option(min=1, help="With --batch: micro-batches (default: 4).")] = None,
    divide: Annotated[int, typer.Option(help="Epipe's batches, by 1, 2, 4 or 8.")] = 1,
    pipelines: Annotated[
        str | None,
        typer.Option(help=f"Of {', '.join(PIPELINES)} (default: Epipe's; with --batch both that are cut by time)."),
    ] = None,
    codec: Annotated[str, typer.Option(help="At the cuts of further pipelines, or none.")] = CODEC,
    schedule: Annotated[str, typer.Option(help="Of pipelines: gpipe, 1f1b or zb.", rich_help_panel=MORE)] = "gpipe",
    momentum: Annotated[float, typer.Option(min=0, max=1, help="Of pipelines' SGD.", rich_help_panel=MORE)] = 0.0,
    ddp_momentum: Annotated[
        float, typer.Option(min=0, max=1, help="Of the SGD of all others.", rich_help_panel=MORE)
    ] = 0.9,
    sync_batch_norm: Annotated[
        bool,
        typer.Option(
            "--sync-batch-norm",
            help="Has BatchNorm see the rows of all data parallel processes.",
            rich_help_panel=MORE,
        ),
    ] = False,
    pixels: Pixels = 224,
    tokens: Tokens = 128,
    device: Place = "cpu",
    threads: Threads = 1,
    rounds: Rounds = 3,
    help_all: HelpAll = False,  # noqa: ARG001 - it does everything by itself
    tiny: Tiny = False,
    seed: Seed = 0,
    json: Json = False,
    output: Output = None,
) -> None:
    """Throughput and bytes: pipelines, torchgpipe, data parallel processes.

    Epipe's rows, at their batches, cuts, schedule and momenta; beside them pipelines' batches by data parallel
    processes, one process alone, and pipelines with a codec. With --batch one batch for all.

    Example: [bold]thinpipe bench pipeline-vs-dp --models mobilenetv2 --processes 2 --divide 4[/bold]
    """
    _verify(device, divide=divide, batch=batch, chunks=chunks, codec=codec)
    asked = _Asked(
        batch=batch,
        chunks=chunks,
        divide=_TINY_DIVISOR if tiny else divide,
        pipelines=None if pipelines is None else tuple(_pipelines(pipelines)),
        codec=None if codec == NONE else codec,
    )
    training = Training(
        schedule=schedule, pipeline_momentum=momentum, ddp_momentum=ddp_momentum, synced=sync_batch_norm
    )
    plans = [
        replace(each, training=training, device=device, threads=threads, rounds=rounds, seed=seed)
        for name in named(models, MODELS)
        for count in numbers(processes, least=2)
        for each in _plans(asked, Shape.of(name, pixels=pixels, tokens=tokens, tiny=tiny), count)
    ]
    if not plans:
        raise typer.BadParameter("Epipe has no such rows; write --batch 64 for rows of your own")
    records = []
    try:
        with progress(sum(map(steps_of, plans))) as done:
            for plan in plans:
                records.append(kept(bench_versus(plan, tick=done), output=output, tiny=tiny))
    except (RankError, ImportError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    report(BENCH, versus_sheet(records), records, output=output, tiny=tiny, as_json=json)


def _plans(asked: _Asked, shape: Shape, processes: int) -> Iterator[Plan]:
    """Makes the plan of a model on so many processes, if there is something to measure."""
    wanted = asked.variants(shape.name, processes)
    if not wanted:
        return
    variants = wanted if has_torchgpipe() else tuple(each for each in wanted if each.way != TORCHGPIPE)
    if variants != wanted:
        typer.echo(f"not run, for want of torchgpipe (pip install 'thinpipe[bench]'): {shape.name}", err=True)
    refused = refusal(variants, shape.name)
    if refused is not None:
        raise typer.BadParameter(refused)
    yield Plan(
        shape=shape,
        processes=processes,
        variants=variants,
        base=next(each for each in variants if (each.way, each.processes) == (DDP, 2)),
        label=asked.label if variants == wanted else f"{asked.label}-without-{TORCHGPIPE}",
        divided=1 if asked.batch is not None else asked.divide,
        profile_seconds=0.1 if shape.tiny else 2.0,
    )


def _verify(device: str, *, divide: int, batch: int | None, chunks: int | None, codec: str) -> None:
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise typer.BadParameter(
            f"there is no device {device!r} here; write --device cpu, or cuda where there is a GPU"
        )
    if divide not in _DIVISORS:
        raise typer.BadParameter(f"Epipe's batches can be divided by {_DIVISORS}, not by {divide}")
    if batch is None and chunks is not None:
        raise typer.BadParameter("Epipe's rows have their own chunks; write --batch 64 as well")
    if batch is not None and divide > 1:
        raise typer.BadParameter("--divide is for Epipe's batches; leave it out with --batch")
    if codec != NONE:
        try:
            parse_codec(codec)
        except ThinpipeError as error:
            raise typer.BadParameter(str(error)) from error


def _pipelines(text: str) -> Iterator[str]:
    for name in dict.fromkeys(word.strip() for word in text.split(",")):
        if name not in PIPELINES:
            raise typer.BadParameter(f"no pipeline is called {name!r}; {instead_of(name, PIPELINES)}")
        if name == TORCHGPIPE and not has_torchgpipe():
            raise typer.BadParameter("torchgpipe is not installed: pip install 'thinpipe[bench]'")
        yield name


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
