"""Names of records: that of the row, and whatever was not as the row has it, so that none replaces another.

::

    pipeline-8                              as published
    pipeline-8-in-place-expandable-one-gpu  LeakyReLU in place, expandable segments, all stages on one GPU

What a pipeline is compared with has the same name but for the row and the GPUs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace

from thinpipe.bench.record import Record
from thinpipe.bench.table import Row, Table

ENVIRONMENT = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDNN_CONV_WSCAP_DBG")
"""What decides how much the allocator reserves beyond what is needed, and how much cuDNN takes to work in."""
EXPANDABLE = "expandable_segments:True"
_PLACE = re.compile(r"-(one-gpu|\d+-gpus)$")


def environment() -> dict[str, str]:
    """Reads the variables of the environment that change what is measured."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


def named(record: Record, *differences: str) -> Record:
    """Adds to the name of a record what was not as its row has it: what is given, the environment, and the devices.

    Args:
        record: named as its row.
        differences: what was different, in words for a file's name; empty ones are left out.
    """
    settings = record.settings
    variables = [_variable(name, value) for name, value in settings.get("environment", {}).items()]
    seed = f"seed-{settings['seed']}" if settings["seed"] else ""
    place = _place(settings["devices"])
    return replace(record, row="-".join(filter(None, (record.row, *differences, seed, *variables, place))))


def _variable(name: str, value: str) -> str:
    if value == EXPANDABLE:
        return "expandable"
    return re.sub(r"[^a-z0-9]+", "-", f"{name}-{value}".lower()).strip("-")


def _place(devices: Sequence[str]) -> str:
    different = set(devices)
    if "cpu" in different:
        return "cpu"
    if len(different) == len(devices):
        return ""
    return "one-gpu" if len(different) == 1 else f"{len(different)}-gpus"


def compared_with(table: Table, row: Row, name: str) -> str:
    """Names the record that another is compared with: of the table's reference, and alike in everything else.

    Args:
        table: of both.
        row: of the record.
        name: of the record.
    """
    reference = next((each for each in table.rows if each.name == table.reference), None)
    differences = name.removeprefix(row.name)
    if reference is None or reference.n == 1:  # which has a GPU to itself however many the others have
        differences = _PLACE.sub("", differences)
    return table.reference + ("-in-place" if row.in_place else "") + differences
