"""What codecs do to real tensors: how small, how wrong, how fast; and how fast on a tensor everybody can make.

========  =======================================================================================================
ratio     bytes that travel over bytes of the tensor, header included; bits are those an element takes
error     the squares of what is wrong over the squares of the tensor: 0 is exact, 1 is as good as sending zeros
cosine    between the tensor and what arrives
signs     the share of the tensor's elements, other than 0, that arrive with their sign
sums      what is wrong in the sums of channels, over those sums: errors that lean to one side add up there
encode    GB of the float32 tensor a second, to the packet; decode from it. Both after a warm-up, in turns with all
          other codecs, the median of the rounds
========  =======================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thinpipe.bench.codecs_methods import SORTED, Method, ours, sorting
from thinpipe.bench.measure import Samples, Variant, in_turns
from thinpipe.bench.record import Machine, Record

BENCH = "codecs"
SPEED_ROW = "speed"
MEASURES = ("ratio", "bits", "error", "cosine", "signs", "sums", "encode", "decode")

SHAPE = (16, 32, 112, 112)
FAST = ("uniform:8", "block:4", "sort:6+2")
"""The codecs whose speed is promised."""

WARM_UP = 1
"""Rounds that are not counted: kernels are compiled in them."""

_MORE = ("block:8", "had:4", "wave:4", "uniform:4", "sort:3+1")
_SPLIT_TOTALS = (4, 6, 8, 12, 16)
_MOST_SPLIT = 8


def synthetic(shape: Sequence[int] = SHAPE) -> Tensor:
    """Makes the tensor that everybody can make: Gaussian, of the shape of MobileNetV2's first cut."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0))


def splits() -> list[str]:
    """Lists sort quantization with every number of bits for the bucket, at each total."""
    return [f"sort:{total - s}+{s}" for total in _SPLIT_TOTALS for s in range(1, min(total - 1, _MOST_SPLIT) + 1)]


def quality(x: Tensor, method: Method) -> dict[str, float | None]:
    """Measures how small and how wrong a tensor becomes."""
    packed = method.encode(x)
    size = method.nbytes(packed)
    back = method.decode(packed).reshape(-1).double()
    flat = x.reshape(-1).double()
    power, signed = float(flat @ flat), int(flat.count_nonzero())
    length = (power * float(back @ back)) ** 0.5
    same = int(((flat.sign() == back.sign()) & (flat != 0)).sum())
    sums, wrong = (_channel_sums(each.view(x.shape)).norm() for each in (flat, back - flat))
    return {
        "ratio": size / x.nbytes,
        "bits": 8 * size / x.numel(),
        "error": float((flat - back).square().sum()) / power if power else None,
        "cosine": float(flat @ back) / length if length else None,
        "signs": same / signed if signed else None,
        "sums": float(wrong / sums) if sums else None,
    }


def _channel_sums(x: Tensor) -> Tensor:
    """Sums all of each channel, which is the second dimension of images and the last of others."""
    channel = 1 if x.dim() >= 4 else x.dim() - 1
    rest = [dim for dim in range(x.dim()) if dim != channel]
    return x.sum(rest) if rest else x.sum()


def measure_tensor(
    name: str,
    x: Tensor,
    specs: Sequence[str],
    others: Sequence[Method],
    *,
    repeats: int,
    notes: Sequence[str] = (),
    tick: Callable[[str], None] = lambda _: None,
) -> Record:
    """Measures every codec on one tensor, and the error of every split of sort quantization.

    Args:
        name: of the tensor.
        x: the tensor.
        specs: our codecs.
        others: how others do it.
        repeats: how often each is timed.
        notes: what a reader must know.
        tick: called after every round, for a progress bar.
    """
    everything = [*(ours(spec) for spec in specs), *others]
    # A codec with a memory errs less on a tensor that it has seen, so its error is that of a new one.
    results = {f"{method.name} {key}": value for method in everything for key, value in quality(x, method).items()}
    samples = _timed(x, everything, repeats, lambda: tick(name))
    for method in everything:
        for way in ("encode", "decode"):
            results[f"{method.name} {way}"] = x.nbytes / 1e9 / samples.median(f"{way} {method.name}")
    for spec in splits():
        results[f"{spec} error"] = quality(x, ours(spec))["error"]
    settings = {"shape": list(x.shape), "zeros": float((x == 0).double().mean()), "repeats": repeats, **_threads()}
    return _record(name, results, samples, settings, notes)


def measure_speed(
    x: Tensor, others: Sequence[Method], *, repeats: int, tick: Callable[[str], None] = lambda _: None
) -> Record:
    """Times the codecs whose speed is promised, beside others and an encoder that sorts, in the same rounds."""
    methods = [*(ours(spec) for spec in (*FAST, *_MORE)), sorting(), *others]
    samples = _timed(x, methods, repeats, lambda: tick(SPEED_ROW))
    results: dict[str, float | None] = {
        "sort_encode_speedup": samples.ratio(f"encode {SORTED}", "encode sort:6+2"),
    }
    for method in methods:
        for way in ("encode", "decode"):
            results[f"{method.name} {way}"] = x.nbytes / 1e9 / samples.median(f"{way} {method.name}")
    return _record(SPEED_ROW, results, samples, {"shape": list(x.shape), "repeats": repeats, **_threads()}, ())


def rows(record: Record) -> dict[str, dict[str, float | None]]:
    """Groups a record's results by codec, in the order they were measured."""
    found: dict[str, dict[str, float | None]] = {}
    for key, value in record.results.items():
        name, _, measure = key.rpartition(" ")
        if name:
            found.setdefault(name, {})[measure] = value
    return found


def table_rows(record: Record) -> dict[str, dict[str, float | None]]:
    """Groups the results of the codecs that were asked for."""
    return {name: values for name, values in rows(record).items() if "bits" in values}


def split_errors(record: Record) -> dict[str, float | None]:
    """Finds the error of every split of sort quantization."""
    found = rows(record)
    return {spec: found[spec]["error"] for spec in splits() if spec in found}


def _timed(x: Tensor, methods: Sequence[Method], repeats: int, tick: Callable[[], None]) -> Samples:
    variants: dict[str, Variant] = {}

    def add(method: Method) -> None:
        packed = method.encode(x)

        def encode() -> None:
            method.encode(x)

        def decode() -> None:
            method.decode(packed)

        variants.update({f"encode {method.name}": encode, f"decode {method.name}": decode})

    for method in methods:
        add(method)

    def track(turns: range) -> Iterator[int]:
        for turn in turns:
            yield turn
            tick()

    return in_turns(variants, rounds=repeats, warm_up=WARM_UP, track=track)


def _threads() -> dict[str, int]:
    return {"threads": torch.get_num_threads()}


def _record(
    row: str,
    results: Mapping[str, float | None],
    samples: Samples,
    settings: dict[str, Any],
    notes: Sequence[str],
) -> Record:
    """Writes six digits, which is more than was measured."""
    short = {name: None if value is None else float(f"{value:.6g}") for name, value in results.items()}
    seconds = {name: [float(f"{value:.4g}") for value in values] for name, values in samples.seconds.items()}
    machine = Machine.current("zstandard", "bitsandbytes")
    return Record(BENCH, short, seconds, settings, machine, row, notes=list(notes))
