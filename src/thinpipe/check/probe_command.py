"""The words of ``thinpipe probe`` on the command line."""

from __future__ import annotations

from dataclasses import asdict
from itertools import cycle, islice
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from thinpipe.bench.codecs_command import split_specs
from thinpipe.check.cases import stages_of
from thinpipe.check.options import read_devices, read_splits, verify_words, with_inputs
from thinpipe.check.probe import Probe, Probed
from thinpipe.check.report import WIDTH
from thinpipe.check.subject import Subject, cast, squared_distance
from thinpipe.check.target import UsageError, load
from thinpipe.check.words import Devices, Factory, High, Shape
from thinpipe.codecs import codec as codec_of
from thinpipe.errors import SpecError
from thinpipe.finite import dumps

_CODECS = "bf16,block:8,had:4,block:4,wave:4,wave:2,wave:1,sort:6+2,uniform:4"
_MEANING = (
    "Errors are the length of what is wrong over the length of what is right, in one step from the weights that the "
    "factory returns; 1 is what nothing at all would have, and more is worse than that. What training makes of them, "
    "training tells: errors of one step that lean nowhere average out."
)


def probe_command(
    target: Factory,
    *,
    codecs: Annotated[
        str, typer.Option(metavar="A,B", help="Those to try, as had:4,wave:2; thinpipe codecs lists them.")
    ] = _CODECS,
    stages: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of stages, as even as can be (default: 2).", show_default=False),
    ] = None,
    balance: Annotated[
        str | None, typer.Option(metavar="2,2", help="Or the layers of each stage.", show_default=False)
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Or the modules that begin a stage, as encoder.layer.2.", show_default=False),
    ] = None,
    input: Shape = None,
    high: High = None,
    devices: Devices = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the factory, the random batch and every step.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Tells what codecs at the cuts would do to your own model: its outputs, and the gradients of its parameters.

    Takes one step with each codec, on a batch of yours, and compares it with the step without one. Activations and
    gradients are packed apart, since they do different harm; a minute of it tells which codecs are worth training with.

    Example: [bold]thinpipe probe examples/digits.py:small --balance 2,4 --codecs had:4,wave:2,uniform:4[/bold]
    """
    try:
        specs = _read(codecs)
        if sum(way is not None for way in (stages, balance, at)) > 1:
            raise UsageError("--stages, --balance and --at are three ways to say where to cut; use one")
        torch.manual_seed(seed)
        found = load(target)
        balances, places = ([] if text is None else [text] for text in (balance, at))
        verify_words(found.model, balances, places)
        loaded = cast(with_inputs(found, input, high, torch.float32), torch.float32)
        homes = read_devices(devices)
        (cut,) = read_splits(balances, places, [stages] if stages else [], loaded, homes[0])
        if stages_of(cut) < 2:
            raise UsageError("one stage has no cut; give it two or more")
        subject = Subject(
            model=loaded.model,
            inputs=loaded.inputs,
            loss=loaded.loss or squared_distance,
            devices=tuple(homes if devices else islice(cycle(homes), stages_of(cut))),
            lr=0.0,
            seed=seed,
            autocast=None,
        )
        probe = Probe(subject, cut)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error
    progress = Console(stderr=True)
    shown = track(specs, "probing", console=progress, transient=True, disable=not progress.is_terminal)
    results = [probe.run(spec) for spec in shown]
    place = ",".join(map(str, cut))
    _show(place, results)
    if as_json:
        typer.echo(dumps({"target": target, "cut": place, "codecs": [asdict(each) for each in results]}))


def _read(text: str) -> tuple[str, ...]:
    specs = split_specs(text)
    for spec in specs:
        try:
            codec_of(spec)
        except SpecError as error:
            raise UsageError(str(error)) from error
    return specs


def _show(place: str, results: list[Probed]) -> None:
    table = Table(title=f"codecs at the cuts of {place}", title_justify="left")
    table.add_column("codec")
    table.add_column("bits", justify="right")
    table.add_column("activations packed:\noutputs", justify="right")
    table.add_column("\ngradients", justify="right")
    for stage in range(len(results[0].back) - 1 if results else 0):
        head = "gradients packed:\n" if not stage else "\n"
        table.add_column(f"{head}gradients, stage {stage}", justify="right")
    for each in results:
        cells = [f"{each.bits:.2f}", _figure(each.outputs), _figure(each.gradients), *map(_figure, each.back[:-1])]
        table.add_row(each.codec, *cells)
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=WIDTH)
    console.print(table)
    console.print(_MEANING)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
