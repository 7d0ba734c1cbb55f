"""The words of ``thinpipe check`` on the command line."""

from __future__ import annotations

import json
from itertools import cycle, islice
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console
from rich.progress import track
from torch import nn

from thinpipe.check.cases import Result, Settings, stages_of
from thinpipe.check.options import read_devices, read_modes, read_numbers, read_splits, verify_words, with_inputs
from thinpipe.check.report import WIDTH, Report
from thinpipe.check.runner import Check
from thinpipe.check.subject import Subject, cast, squared_distance
from thinpipe.check.target import UsageError, load
from thinpipe.check.words import Devices, Factory, High, Shape
from thinpipe.help import MORE, HelpAll, a_finite
from thinpipe.runtime.pipe import CHECKPOINT_MODES
from thinpipe.stages.microbatch import Batch

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Relative to the largest magnitude: far above rounding of the type computed in, far below any real mistake."""


def check_command(
    target: Factory,
    *,
    stages: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Number of stages, as even as can be (default: 2).", show_default=False),
    ] = None,
    balance: Annotated[
        list[str] | None,
        typer.Option(metavar="2,2", help="Layers of each stage; repeat it to try several splits.", show_default=False),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B", help="Or the modules that begin a stage, as encoder.layer.2.", show_default=False),
    ] = None,
    chunks: Annotated[str, typer.Option(metavar="1,2,4", help="Numbers of micro-batches to try.")] = "1,2,4",
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="A,B", help=f"Of {', '.join(CHECKPOINT_MODES)}, those to try (default: all).", show_default=False
        ),
    ] = ",".join(CHECKPOINT_MODES),
    input: Shape = None,
    high: High = None,
    devices: Devices = None,
    autocast: Annotated[
        Literal["bf16"] | None,
        typer.Option(metavar="bf16", help="Run everything under autocast.", show_default=False),
    ] = None,
    deferred_batch_norm: Annotated[
        bool, typer.Option("--deferred-batch-norm", help="Move BatchNorm's statistics once a batch.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    help_all: HelpAll = False,  # noqa: ARG001 - it does everything by itself
    dtype: Annotated[
        Literal["float64", "float32"] | None,
        typer.Option(
            rich_help_panel=MORE,
            help="The type to compare in. In float64 nothing but rounding hides (default: float64; float32 with "
            "--autocast).",
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            parser=a_finite,
            metavar="X",
            rich_help_panel=MORE,
            help="The largest difference that passes, relative to the largest magnitude (default: 1e-9 in float64, "
            "1e-3 in float32, 5e-2 with autocast).",
            show_default=False,
        ),
    ] = None,
    lr: Annotated[
        float,
        typer.Option(parser=a_finite, metavar="X", rich_help_panel=MORE, help="Learning rate of the one SGD step."),
    ] = 0.1,
    seed: Annotated[
        int, typer.Option(min=0, rich_help_panel=MORE, help="Seed of the factory, the random batch and every run.")
    ] = 0,
) -> None:
    """Proves that your model computes the same in a pipe as on one device.

    Trains copies of it for one step, as pipes of every split, number of chunks and checkpoint mode, and compares loss,
    outputs, gradients, updated parameters and BatchNorm statistics with one device. The model is an nn.Sequential, a
    transformers model, or with --at any that can be traced.

    Exit status: 0 if all are equal, 1 if any differs or fails, 2 if there is nothing to check.

    Example: [bold]thinpipe check examples/digits.py:small --balance 2,4 --balance 3,3 --chunks 1,2,8[/bold]
    """
    try:
        computed, precision = _types(dtype, autocast)
        torch.manual_seed(seed)
        found = load(target)
        verify_words(found.model, balance or [], at or [])
        loaded = cast(with_inputs(found, input, high, computed), computed)
        places = read_devices(devices)
        splits = read_splits(balance or [], at or [], stages or [], loaded, places[0])
        subject = Subject(
            model=loaded.model,
            inputs=loaded.inputs,
            loss=loaded.loss or squared_distance,
            # GPUs that nobody listed are used in turn; a list that somebody wrote is taken as it is.
            devices=tuple(places if devices else islice(cycle(places), max(map(stages_of, splits)))),
            lr=lr,
            seed=seed,
            autocast=precision if autocast else None,
        )
        settings = Settings(
            splits=splits,
            chunks=read_numbers(chunks, "--chunks"),
            modes=read_modes(checkpoint),
            deferred=deferred_batch_norm,
            tolerance=_TOLERANCES[precision] if tolerance is None else tolerance,
        )
        check = Check(subject, settings)
        results = _run(check)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error
    report = Report(target, _facts(subject, precision), check.notes(), results, settings.tolerance)
    _show(report, as_json=as_json)
    raise typer.Exit(0 if report.equal else 1)


def _types(dtype: str | None, autocast: str | None) -> tuple[torch.dtype, torch.dtype]:
    """Chooses the type of the tensors, and the type that decides about rounding."""
    if not autocast:
        return (torch.float32, torch.float32) if dtype == "float32" else (torch.float64, torch.float64)
    if dtype == "float64":
        raise UsageError("autocast leaves float64 alone; use --autocast with --dtype float32")
    return torch.float32, torch.bfloat16


def _run(check: Check) -> list[Result]:
    repeated = check.repeats()
    if not repeated.equal:
        return [repeated]
    progress = Console(stderr=True)
    cases = check.cases()
    shown = track(cases, "checking", console=progress, transient=True, disable=not progress.is_terminal)
    return [check.run(case) for case in shown]


def _facts(subject: Subject, precision: torch.dtype) -> str:
    devices = "+".join(str(device) for device in subject.devices)
    rows = sum(Batch.of(subject.inputs, 1).rows)
    type_name = str(precision).removeprefix("torch.")
    model = subject.model
    size = f"{len(model)} layers" if isinstance(model, nn.Sequential) else type(model).__name__
    return f"{size}, {rows} rows, {type_name}, {devices}, seed {subject.seed}"


def _show(report: Report, *, as_json: bool) -> None:
    console = Console(highlight=False)
    report.show(console if console.is_terminal else Console(highlight=False, width=WIDTH))
    if as_json:
        typer.echo(json.dumps(report.as_json()))
