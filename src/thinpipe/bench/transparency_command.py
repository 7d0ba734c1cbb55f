"""The words of ``thinpipe bench transparency`` on the command line."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from thinpipe.bench.cifar import find_cifar10, load_cifar10
from thinpipe.bench.devices import Devices
from thinpipe.bench.options import Json, Output, Tiny, Where, kept, progress, report
from thinpipe.bench.page import curves_picture
from thinpipe.bench.record import Record
from thinpipe.bench.sheet import transparency_sheet
from thinpipe.bench.transparency import BENCH, CHUNKS, EPOCHS, STAGES, Plan, compare, digits, few
from thinpipe.errors import DeviceError


def transparency_command(
    *,
    devices: Where = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A folder with CIFAR-10's binary files, for ResNet-18 (default: handwritten digits)."),
    ] = None,
    stages: Annotated[int, typer.Option(min=1, help="Stages of the pipe.")] = STAGES,
    chunks: Annotated[int, typer.Option(min=1, help="Micro-batches of the pipe.")] = CHUNKS,
    epochs: Annotated[int, typer.Option(min=1, help="Over the training images.")] = EPOCHS,
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

    Both have the same seeds. What is recorded is written after each seed, and a run that was stopped goes on there if
    the code is the same.

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
    records: list[Record] = []
    with progress(2 * plan.seeds * plan.epochs) as done:
        begun = partial(_begun, output if tiny else output or Path("results"))
        for after_seed in compare(images, plan, places, done, begun):
            records = [kept(record, output=output, tiny=tiny) for record in after_seed]
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(curves_picture(records))
    report(BENCH, transparency_sheet(records), records, output=output, tiny=tiny, as_json=json)


def _begun(folder: Path | None, row: str) -> Record | None:
    """Reads what was recorded of a row, if anything was."""
    file = None if folder is None else folder / BENCH / f"{row}.json"
    return Record.load(file) if file is not None and file.exists() else None
