"""What a benchmark leaves behind: its numbers, with all it takes to repeat them."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Machine:
    """The hardware and software of a run."""

    cpu: str
    cores: int
    gpus: list[str]
    python: str
    versions: dict[str, str]

    @classmethod
    def current(cls, *packages: str) -> Machine:
        """Describes this machine, with the versions of torch, thinpipe and the packages named."""
        return cls(
            cpu=_cpu_name(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            gpus=[torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())],
            python=platform.python_version(),
            versions={name: _version(name) for name in ("thinpipe", "torch", *packages)},
        )


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    if package in ("thinpipe", "torch"):  # which may run from a checkout, of which no installer knows
        return str(sys.modules[package].__version__)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True)
class Record:
    """One run of one benchmark.

    Args:
        bench: its name.
        results: the numbers people quote, by name.
        samples: the raw times behind them, in seconds, by variant.
        settings: what was run.
        machine: where.
        command: the command line that repeats it.
    """

    bench: str
    results: dict[str, float | None]
    samples: dict[str, list[float]]
    settings: dict[str, Any]
    machine: Machine
    command: str = field(default_factory=lambda: shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))

    def line(self) -> str:
        """Writes the record as one line of JSON, the results at the top level."""
        entries = asdict(self)
        return json.dumps({"bench": self.bench, **entries.pop("results"), **entries})
