"""How long codecs keep a device busy, beside a clone of the same tensor: ``bench codecs --device cuda``.

A codec on a GPU runs between kernels of the model, which are queued ahead; so what counts is the time of its kernels,
not that of launching them. The queue is held up while calls are put into it, and then timed as it drains.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from thinpipe.bench.codecs import BENCH, SHAPE
from thinpipe.bench.record import Machine, Record
from thinpipe.bench.sheet import Sheet
from thinpipe.bench.svg import bar_chart
from thinpipe.codecs import codec

LARGE = (64, *SHAPE[1:])
"""103 MB of float32."""

SPECS = ("uniform:8", "block:4", "had:4", "sort:6+2", "block:8", "had:2", "nf:4", "topk:0.1")
CLONE = "clone"

_CALLS = 10
_HELD = 20_000_000
"""Cycles that the queue is held up; more than it takes to launch the calls."""


def row_of(device: torch.device) -> str:
    """Names the record of a kind of device."""
    return f"speed-{device.type}"


def measure_device(x: Tensor, specs: Sequence[str], *, repeats: int, tick: Callable[[str], None]) -> Record:
    """Times a clone, and each codec's encoding and decoding, in turns.

    Args:
        x: the tensor, on the device.
        specs: the codecs.
        repeats: how often each is timed.
        tick: called after every round, for a progress bar.
    """
    calls: dict[str, Callable[[], object]] = {CLONE: x.clone}
    for spec in specs:
        made = codec(spec)
        packet = made.encode(x)
        calls[f"encode {spec}"] = lambda made=made: made.encode(x)  # type: ignore[misc]
        calls[f"decode {spec}"] = lambda made=made, packet=packet: made.decode(packet)  # type: ignore[misc]
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(1 + repeats):
        for name, call in calls.items():
            taken = busy_seconds(call, x.device)
            if turn:  # the first compiles
                seconds[name].append(float(f"{taken:.4g}"))
        tick(row_of(x.device))
    clone = statistics.median(seconds[CLONE])
    results: dict[str, float | None] = {f"{CLONE} gbs": x.nbytes / 1e9 / clone}
    for spec in specs:
        for way in ("encode", "decode"):
            taken = statistics.median(seconds[f"{way} {spec}"])
            results[f"{spec} {way}"] = float(f"{x.nbytes / 1e9 / taken:.4g}")
            results[f"{spec} {way} over clone"] = float(f"{taken / clone:.4g}")
    settings = {"shape": list(x.shape), "repeats": repeats, "calls": _CALLS}
    return Record(BENCH, results, seconds, settings, Machine.current("triton"), row_of(x.device))


def busy_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Measures how long one call keeps the device busy."""
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(_CALLS):
            call()
        return (time.perf_counter() - began) / _CALLS
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    torch.cuda._sleep(_HELD)
    start.record()
    for _ in range(_CALLS):
        call()
    end.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(end)) / 1e3 / _CALLS


def device_sheet(records: Sequence[Record]) -> Sheet:
    """Shows times in those of a clone."""
    record = records[0]
    specs = [key.removesuffix(" encode") for key in record.results if key.endswith(" encode")]
    heads = ["codec", "encode GB/s", "decode GB/s", "encode, in clones", "decode, in clones"]
    lines = [
        [
            spec,
            *(f"{record.results[f'{spec} {way}']:.1f}" for way in ("encode", "decode")),
            *(f"{record.results[f'{spec} {way} over clone']:.2f}" for way in ("encode", "decode")),
        ]
        for spec in specs
    ]
    shape = " x ".join(map(str, record.settings["shape"]))
    notes = [
        f"float32 {shape}, Gaussian. A clone of it runs at {record.results[f'{CLONE} gbs']:.1f} GB/s.",
        f"Times are those that the device is busy, medians of {record.settings['repeats']} rounds of "
        f"{record.settings['calls']} calls, in turns.",
    ]
    bars = {spec: {way: record.results[f"{spec} {way} over clone"] for way in ("encode", "decode")} for spec in specs}
    return Sheet("Codecs on a device", heads, lines, notes, "time, in clones of the tensor", bars)


def device_picture(sheet: Sheet, _: Sequence[Record]) -> str:
    """Draws the times as bars."""
    return bar_chart(sheet.title, sheet.measure, sheet.bars)
