"""What ``bench codecs`` compares: our codecs by their text, and how others do the same, behind one small interface."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thinpipe.codecs import codec

SPECS = (
    *("none", "fp16", "bf16"),
    *("uniform:8", "uniform:4", "uniform:4,zero", "sort:8", "sort:4", "kmeans:4"),
    *("block:8", "block:4", "block:4/32", "block:4/512", "block:3", "block:2/32", "block:4,sr"),
    *("had:4", "had:4/64", "had:3", "had:2", "nf:4"),
    *("wave:4", "wave:2", "wave:1", "wave:0.6", "wave:0.3"),
    *("topk:0.1", "topk:0.1|uniform:8", "power:3|block:8", "svd:4", "downsample:2"),
    *("block:8|zstd", "block:4|zstd", "had:4|zstd"),
)
"""The catalogue, at about the widths people use."""

SORTED = "torch.sort"

_BUCKETS, _PLACES = 4, 64


@dataclass(frozen=True)
class Method:
    """A way to make a tensor small and whole again.

    Args:
        name: in the table.
        encode: makes it small.
        decode: makes it whole again.
        nbytes: counts what would travel.
    """

    name: str
    encode: Callable[[Tensor], Any]
    decode: Callable[[Any], Tensor]
    nbytes: Callable[[Any], int]


def ours(spec: str) -> Method:
    """Makes one of our codecs, new: without memory of tensors before.

    Raises:
        SpecError: there is no such codec.
    """
    made = codec(spec)
    return Method(spec, made.encode, made.decode, lambda packet: int(packet.nbytes))


def default_specs() -> tuple[tuple[str, ...], list[str]]:
    """Lists the codecs that can be made here, and says why others cannot."""
    if importlib.util.find_spec("zstandard") is not None:
        return SPECS, []
    kept = tuple(spec for spec in SPECS if not spec.endswith("|zstd"))
    return kept, ["|zstd was left out for want of the package zstandard; run: pip install 'thinpipe[zstd]'"]


def peers() -> tuple[list[Method], list[str]]:
    """Lists how others do it, as far as they are installed, and says what is not."""
    try:
        functional = importlib.import_module("bitsandbytes.functional")
    except ImportError:
        return [], ["bitsandbytes was left out: it is not installed"]
    return [_blockwise(functional), _normal_float(functional)], []


def _blockwise(functional: Any) -> Method:
    # Rows shorter than a block confuse its kernels for the CPU; a flat tensor does not.
    return Method(
        "bitsandbytes 8-bit",
        lambda x: functional.quantize_blockwise(x.reshape(-1)),
        lambda packed: functional.dequantize_blockwise(*packed),
        lambda packed: int(packed[0].nbytes + packed[1].absmax.nbytes),
    )


def _normal_float(functional: Any) -> Method:
    return Method(
        "bitsandbytes NF4",
        lambda x: functional.quantize_nf4(x.reshape(-1)),
        lambda packed: functional.dequantize_nf4(*packed),
        lambda packed: int(packed[0].nbytes + packed[1].absmax.nbytes),
    )


def sorting() -> Method:
    """Makes ``sort:6+2`` as it is usually written: the values are sorted, cut in four, and scattered back as bytes."""
    return Method(SORTED, _sort_encode, _sort_decode, lambda packed: sum(int(part.nbytes) for part in packed))


def _sort_encode(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, order = torch.sort(x.reshape(-1))
    parts = values.tensor_split(_BUCKETS)
    lows = torch.stack([part[0] for part in parts])
    steps = (torch.stack([part[-1] for part in parts]) - lows) / (_PLACES - 1)
    codes = torch.empty(len(values), dtype=torch.uint8)
    places = codes.tensor_split(_BUCKETS)
    for k, (part, low, step, place) in enumerate(zip(parts, lows, steps, places, strict=True)):
        scale = torch.where(step > 0, 1 / step, 0)
        # The values are no longer needed, so the grid is laid in their place.
        place.copy_(part.sub_(low).mul_(scale).round_().add_(k * _PLACES))
    return lows, steps, torch.empty_like(codes).scatter_(0, order, codes)


def _sort_decode(packed: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    lows, steps, codes = packed
    table = lows[:, None] + steps[:, None] * torch.arange(_PLACES)
    return table.reshape(-1)[codes.int()]
