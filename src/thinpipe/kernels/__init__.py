"""The hot loops of the codecs, three times over: plain torch, numba for the CPU, triton for NVIDIA GPUs.

The three give the same bytes. ``kernels_for`` picks the fastest that fits a tensor; ``using`` picks by hand.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from thinpipe.kernels import planes, reference, reference_blocks


@dataclass(frozen=True)
class Kernels:
    """One set of kernels; ``reference`` and ``reference_blocks`` say what each does."""

    name: str
    pack: Callable[[Tensor, int], Tensor]
    unpack: Callable[[Tensor, int, int], Tensor]
    extent: Callable[[Tensor], Tensor]
    affine: Callable[[Tensor, Tensor, Tensor, int, int | None], Tensor]
    lookup: Callable[[Tensor, Tensor, int, int], Tensor]
    histogram: Callable[[Tensor], Tensor]
    order_statistics: Callable[[Tensor, list[int]], Tensor]
    buckets: Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
    nearest: Callable[[Tensor, Tensor, int], Tensor]
    blocks_encode: Callable[[Tensor, int, int, int | None], tuple[Tensor, Tensor]]
    blocks_decode: Callable[[Tensor, Tensor, int, int, int], Tensor]
    hadamard_encode: Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]
    hadamard_decode: Callable[[Tensor, Tensor, Tensor, int, int], Tensor]


REFERENCE = Kernels(
    name="reference",
    pack=planes.pack,
    unpack=planes.unpack,
    extent=reference.extent,
    affine=reference.affine,
    lookup=reference.lookup,
    histogram=reference.histogram,
    order_statistics=reference.order_statistics,
    buckets=reference.buckets,
    nearest=reference.nearest,
    blocks_encode=reference_blocks.blocks_encode,
    blocks_decode=reference_blocks.blocks_decode,
    hadamard_encode=reference_blocks.hadamard_encode,
    hadamard_decode=reference_blocks.hadamard_decode,
)


@cache
def cpu_kernels() -> Kernels:
    """Loads the kernels that numba compiles; the reference where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return REFERENCE
    from thinpipe.kernels import cpu, cpu_blocks, cpu_rotated, cpu_select

    return Kernels(
        name="cpu",
        pack=cpu.pack,
        unpack=cpu.unpack,
        extent=cpu.extent,
        affine=cpu.affine,
        lookup=cpu.lookup,
        histogram=cpu_select.histogram,
        order_statistics=cpu_select.order_statistics,
        buckets=cpu.buckets,
        nearest=cpu.nearest,
        blocks_encode=cpu_blocks.blocks_encode,
        blocks_decode=cpu_blocks.blocks_decode,
        hadamard_encode=cpu_rotated.hadamard_encode,
        hadamard_decode=cpu_rotated.hadamard_decode,
    )


@cache
def gpu_kernels() -> Kernels:
    """Loads the kernels that triton compiles; what it has none for is the reference's.

    They are not picked by themselves: they have run in triton's interpreter only, and on no GPU.
    """
    from thinpipe.kernels import gpu, gpu_blocks, gpu_rotated

    return replace(
        REFERENCE,
        name="gpu",
        extent=gpu.extent,
        affine=gpu.affine,
        lookup=gpu.lookup,
        buckets=gpu.buckets,
        nearest=gpu.nearest,
        blocks_encode=gpu_blocks.blocks_encode,
        blocks_decode=gpu_blocks.blocks_decode,
        hadamard_encode=gpu_rotated.hadamard_encode,
        hadamard_decode=gpu_rotated.hadamard_decode,
    )


_chosen: ContextVar[Kernels | None] = ContextVar("thinpipe-kernels", default=None)


@contextmanager
def using(kernels: Kernels) -> Iterator[None]:
    """Has the codecs that are called inside, in this thread, use one set of kernels."""
    token = _chosen.set(kernels)
    try:
        yield
    finally:
        _chosen.reset(token)


def kernels_for(device: torch.device, dtype: torch.dtype = torch.float32) -> Kernels:
    """Picks the kernels for tensors of a device and type."""
    if dtype == torch.float64:
        return REFERENCE
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    return cpu_kernels() if device.type == "cpu" else REFERENCE
