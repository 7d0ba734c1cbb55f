"""The words of ``thinpipe bench`` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from thinpipe.bench.capture_command import capture_command
from thinpipe.bench.codecs_command import codecs_command
from thinpipe.bench.data_parallel_command import data_parallel_command
from thinpipe.bench.heap_command import heap_command
from thinpipe.bench.link_command import link_command
from thinpipe.bench.memory_command import amoebanet_memory_command, unet_memory_command
from thinpipe.bench.page_command import page_command
from thinpipe.bench.pipe import CHUNKS, Workload, bench_pipe
from thinpipe.bench.record import Record
from thinpipe.bench.speed_command import amoebanet_speed_command, resnet_speed_command, unet_speed_command
from thinpipe.bench.timeline_command import unet_timeline_command
from thinpipe.bench.train_rate_command import train_rate_command
from thinpipe.bench.transparency_command import transparency_command
from thinpipe.bench.versus_command import versus_command
from thinpipe.help import App

bench_app = App(
    help="Measure, as ratios within one run.\n\n"
    "Every bench prints a table, and with --json one JSON object as its last line, with the raw samples, the machine "
    "and the command.\n\n"
    "Example: [bold]thinpipe bench codecs --tiny --specs block:4,had:4[/bold]",
    no_args_is_help=True,
)

_TINY = Workload(layers=2, channels=8, pixels=4, rows=8)


@bench_app.command("pipe")
def pipe_command(
    *,
    devices: Annotated[
        str, typer.Option(help="The devices of the two stages, as cuda:0,cuda:1; a CPU stage has one core.")
    ] = "cpu,cpu",
    rounds: Annotated[int, typer.Option(min=1, help="How often each variant is timed; more are less noisy.")] = 15,
    tiny: Annotated[bool, typer.Option("--tiny", help="The same shape of work, small, to try the command.")] = False,
    seed: Annotated[int, typer.Option(help="Of weights and data.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Make the last line one JSON object.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Also write the JSON object to this file.", show_default=False)
    ] = None,
) -> None:
    """Overhead and speed-up of a Pipe, against the bare module.

    Against torchgpipe as well, where it is installed.

    Example: [bold]thinpipe bench pipe --rounds 30 --json[/bold]
    """
    places = [torch.device(name) for name in devices.split(",")]
    if len(places) != 2:
        raise typer.BadParameter(f"two stages need two devices, got {devices!r}; write --devices cpu,cpu")
    console = Console(stderr=True)
    record = bench_pipe(
        _TINY if tiny else Workload(),
        devices=places,
        rounds=rounds,
        seed=seed,
        track=lambda turns: track(turns, "timing", console=console, disable=not console.is_terminal, transient=True),
    )
    Console().print(_table(record))
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(record.line() + "\n")
    if json:
        typer.echo(record.line())


_MEANINGS = {
    "overhead_1x1": "one stage, one micro-batch, over the bare module (1 is none)",
    "speedup_2": f"two stages, {CHUNKS} micro-batches, against the bare module",
    "ideal_speedup_2": "what a second, equal stage can add at best",
    "micro_batching": f"of that by {CHUNKS} micro-batches alone, on one stage (1 is neutral)",
    "pipelining_2": "of that by the second stage",
    "torchgpipe_overhead_1x1": "the same overhead, of torchgpipe",
    "torchgpipe_speedup_2": "the same speed-up, of torchgpipe",
    "over_torchgpipe": "a Pipe against torchgpipe, two stages each",
}


def _table(record: Record) -> Table:
    machine = record.machine
    title = f"pipe on {machine.gpus[0] if machine.gpus else machine.cpu}, torch {machine.versions['torch']}"
    table = Table("ratio", "value", "meaning", title=title, caption="medians of ratios within interleaved rounds")
    for name, value in record.results.items():
        table.add_row(name, "not installed" if value is None else f"{value:.3f}", _MEANINGS[name])
    return table


bench_app.command("unet-memory")(unet_memory_command)
bench_app.command("amoebanet-memory")(amoebanet_memory_command)
bench_app.command("unet-speed")(unet_speed_command)
bench_app.command("amoebanet-speed")(amoebanet_speed_command)
bench_app.command("resnet-speed")(resnet_speed_command)
bench_app.command("unet-timeline")(unet_timeline_command)
bench_app.command("transparency")(transparency_command)
bench_app.command("train")(train_rate_command)
bench_app.command("capture")(capture_command)
bench_app.command("codecs")(codecs_command)
bench_app.command("link")(link_command)
bench_app.command("data-parallel")(data_parallel_command)
bench_app.command("pipeline-vs-dp")(versus_command)
bench_app.command("heap")(heap_command)
bench_app.command("page")(page_command)
