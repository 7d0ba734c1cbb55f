"""The words of ``thinpipe bench transparency`` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thinpipe.bench.cifar import find_cifar10, load_cifar10
from thinpipe.bench.devices import Devices
from thinpipe.bench.options import Json, Output, Tiny, Where, kept, progress, report
from thinpipe.bench.page import curves_picture
from thinpipe.bench.sheet import transparency_sheet
from thinpipe.bench.transparency import BENCH, Plan, compare, digits, few
from thinpipe.errors import DeviceError


def transparency_command(
    *,
    devices: Where = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A folder with CIFAR-10's binary files, for ResNet-18 (default: handwritten digits)."),
    ] = None,
    stages: Annotated[int, typer.Option(min=1, help="Stages of the pipe.")] = 2,
    chunks: Annotated[int, typer.Option(min=1, help="Micro-batches of the pipe.")] = 4,
    epochs: Annotated[int, typer.Option(min=1, help="Over the training images.")] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Runs with and without the pipe, from as many seeds.")] = 5,
    deferred_batch_norm: Annotated[
        bool, typer.Option("--deferred-batch-norm", help="Move BatchNorm's running statistics once a batch.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="Also draw the curves to this SVG file.")] = None,
    tiny: Tiny = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """Trains a network with and without a pipe, and shows both error curves.

    Both have the same seeds.

    Example: [bold]thinpipe bench transparency --seeds 3 --epochs 5 --picture curves.svg[/bold]
    """
    found = find_cifar10(data) if data is not None else None
    if data is not None and found is None:
        raise typer.BadParameter(f"no test_batch.bin in {data}; unpack cifar-10-binary.tar.gz there")
    try:
        places = Devices.parse(devices).take(stages)
        images = digits() if found is None else load_cifar10(found)
    except (DeviceError, ImportError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    plan = Plan(epochs=epochs, seeds=seeds, chunks=chunks, deferred=deferred_batch_norm)
    if tiny:
        images, plan = few(images, 200), Plan(epochs=2, seeds=2, chunks=chunks, deferred=deferred_batch_norm)
    with progress(2 * plan.seeds * plan.epochs) as done:
        records = [kept(record, output=output, tiny=tiny) for record in compare(images, plan, places, done)]
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(curves_picture(records))
    report(BENCH, transparency_sheet(records), records, output=output, tiny=tiny, as_json=json)
