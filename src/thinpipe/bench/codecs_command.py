"""The words of ``thinpipe bench codecs`` on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from thinpipe.bench.capture import Plan, capture, load
from thinpipe.bench.capture_subjects import small
from thinpipe.bench.codecs import (
    BENCH,
    FAST,
    WARM_UP,
    measure_speed,
    measure_tensor,
    rows,
    split_errors,
    synthetic,
    table_rows,
)
from thinpipe.bench.codecs_device import LARGE, device_sheet, measure_device
from thinpipe.bench.codecs_device import SPECS as DEVICE_SPECS
from thinpipe.bench.codecs_methods import default_specs, ours, peers
from thinpipe.bench.codecs_sheet import speed_sheet, splits_sheet, tensor_sheet
from thinpipe.bench.options import Json, Output, Tiny, kept, progress, report
from thinpipe.bench.record import Record
from thinpipe.codecs import CATALOGUE
from thinpipe.errors import ThinpipeError
from thinpipe.finite import dumps

_TINY = (2, 8, 16, 16)


def codecs_command(
    *,
    tensors: Annotated[
        Path | None,
        typer.Option(
            help="A folder of safetensors files, as bench capture writes or of your own; every tensor is measured "
            "(default: a small network's on digits, captured now, and a Gaussian)."
        ),
    ] = None,
    specs: Annotated[
        str | None,
        typer.Option(
            help="Codecs, as 'block:4,had:4,topk:0.1|uniform:8' (default: the whole catalogue, at the usual widths)."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Only how long codecs keep this device busy, beside a clone of the same tensor, as cuda or cpu "
            "(default: all of the above, on the CPU)."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often each is timed; more are less noisy.")] = 5,
    tiny: Tiny = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """Measures what codecs do to real tensors: how small, how wrong, how fast.

    A table for each tensor: bytes that travel over bytes of the tensor, the error that the bits buy, and GB of float32
    encoded and decoded a second. Then sort quantization with every number of buckets at the same total of bits; and the
    speed on one large tensor beside bitsandbytes, where it is installed, and beside an encoder that calls torch.sort.

    Choose the codec of least error among those whose bits your link affords; thinpipe bench page draws the choice.

    Example: [bold]thinpipe bench capture --output captured[/bold], then
    [bold]thinpipe bench codecs --tensors captured --specs block:4,had:4,sort:6+2[/bold]
    """
    if device is not None:
        _measure_device(device, specs, repeats=repeats, tiny=tiny, as_json=json, output=output)
        return
    try:
        chosen, notes = default_specs() if specs is None else (parse_specs(specs), [])
        found = _tensors(tensors, tiny=tiny)
        others, missing = peers()
        speed_tensor = synthetic(_TINY) if tiny else synthetic()
        with progress((len(found) + 1) * (WARM_UP + repeats)) as done:
            records = []
            for name, x in found.items():
                record = measure_tensor(name, x, chosen, others, repeats=repeats, notes=[*notes, *missing], tick=done)
                records.append(kept(record, output=output, tiny=tiny))
            speed = kept(measure_speed(speed_tensor, others, repeats=repeats, tick=done), output=output, tiny=tiny)
    except (ImportError, OSError, ValueError, ThinpipeError) as error:
        raise typer.BadParameter(str(error)) from error
    for record in records:
        sheet = tensor_sheet(record)
        sheet = sheet if record is records[-1] else replace(sheet, notes=[])  # they are all the same
        report(BENCH, sheet, [record], output=output, tiny=tiny, as_json=False)
    report(BENCH, splits_sheet(records), [], output=output, tiny=tiny, as_json=False)
    report(BENCH, speed_sheet([speed]), [speed], output=output, tiny=tiny, as_json=False)
    if json:
        typer.echo(dumps(_summary(records, speed)))


def _measure_device(
    name: str, specs: str | None, *, repeats: int, tiny: bool, as_json: bool, output: Path | None
) -> None:
    try:
        x = synthetic(_TINY if tiny else LARGE).to(name)
        chosen = DEVICE_SPECS if specs is None else parse_specs(specs)
        with progress(1 + repeats) as done:
            record = measure_device(x, chosen, repeats=repeats, tick=done)
    except (RuntimeError, AssertionError, ThinpipeError) as error:  # torch has no such device, or was built without
        raise typer.BadParameter(str(error)) from error
    kept(record, output=output, tiny=tiny)
    report(BENCH, device_sheet([record]), [record], output=output, tiny=tiny, as_json=as_json)


def parse_specs(text: str) -> tuple[str, ...]:
    """Reads a list of codecs; a comma before an option, as in ``block:4,sr``, does not end one.

    Raises:
        SpecError: one of them is none.
    """
    found = split_specs(text)
    for spec in found:
        ours(spec)
    return found


def split_specs(text: str) -> tuple[str, ...]:
    """Takes a list of codecs apart, each once, whether or not there are such codecs."""
    options = "|".join(dict.fromkeys(option for entry in CATALOGUE.values() for option in entry.options))
    found = [spec.strip() for spec in re.split(rf",(?!(?:{options})(?:[,|)]|$))", text)]
    return tuple(dict.fromkeys(found))


def _tensors(folder: Path | None, *, tiny: bool) -> dict[str, Tensor]:
    """Finds what to measure on."""
    if folder is not None:
        return load(folder)
    plan = Plan(steps=2 if tiny else 25, batch=4 if tiny else 64)
    subject = small(plan)
    seen = capture(subject, plan).cuts
    captured = {f"{subject.name}-{cut}-{kind}": x for cut, pair in seen.items() for kind, x in pair.items()}
    return {**captured, "gaussian": synthetic(_TINY) if tiny else synthetic()}


def _summary(records: Sequence[Record], speed: Record) -> dict[str, Any]:
    """Gathers what the last line says: what is promised first, then every tensor's table, then the records."""
    fast = rows(speed)
    return {
        "bench": BENCH,
        "sort_encode_speedup": speed.results["sort_encode_speedup"],
        "encode_gbs": {name: fast[name]["encode"] for name in FAST},
        "decode_gbs": {name: fast[name]["decode"] for name in FAST},
        "tensors": {record.row: table_rows(record) for record in records},
        "sort_splits": {record.row: split_errors(record) for record in records},
        "rows": [record.entries() for record in (*records, speed)],
    }
