"""The hot loops of the codecs, three times over: plain torch, numba for the CPU, triton for NVIDIA GPUs.

The three give the same bytes. ``kernels_for`` picks for a tensor: numba's on the CPU, triton's on an NVIDIA GPU, plain
torch elsewhere. ``using`` picks by hand.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from thinpipe.kernels import planes, reference, reference_blocks, reference_waves


@dataclass(frozen=True)
class Kernels:
    """One set of kernels; ``reference``, ``reference_blocks`` and ``reference_waves`` say what each does."""

    name: str
    pack: Callable[[Tensor, int], Tensor]
    unpack: Callable[[Tensor, int, int], Tensor]
    extent: Callable[[Tensor], Tensor]
    grids: Callable[[Tensor, Tensor, int], Tensor]
    affine: Callable[[Tensor, Tensor, Tensor, int, int | None], Tensor]
    lookup: Callable[[Tensor, Tensor, int, int], Tensor]
    histogram: Callable[[Tensor], Tensor]
    order_statistics: Callable[[Tensor, list[int]], Tensor]
    buckets: Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
    nearest: Callable[[Tensor, Tensor, int], Tensor]
    blocks_encode: Callable[[Tensor, int, int, int | None], tuple[Tensor, Tensor]]
    blocks_decode: Callable[[Tensor, Tensor, int, int, int], Tensor]
    hadamard_encode: Callable[[Tensor, int, int], tuple[Tensor, Tensor]]
    hadamard_decode: Callable[[Tensor, Tensor, int, int, int], Tensor]
    turned: Callable[[Tensor, torch.dtype], Tensor]
    waves_encode: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int], Tensor]
    waves_decode: Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]


def _of(name: str, *modules: ModuleType) -> Kernels:
    """Gathers kernels from modules, each from the first that has it."""

    def kernel(wanted: str) -> Any:
        return next(getattr(module, wanted) for module in modules if hasattr(module, wanted))

    return Kernels(name, *(kernel(field.name) for field in fields(Kernels)[1:]))


_PLAIN = (planes, reference, reference_blocks, reference_waves)
REFERENCE = _of("reference", *_PLAIN)


@cache
def cpu_kernels() -> Kernels:
    """Loads the kernels that numba compiles; the reference where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return REFERENCE
    from thinpipe.kernels import cpu, cpu_blocks, cpu_rotated, cpu_select, cpu_waves

    return _of("cpu", cpu, cpu_select, cpu_blocks, cpu_rotated, cpu_waves, *_PLAIN)


@cache
def gpu_kernels() -> Kernels:
    """Loads the kernels that triton compiles; the reference's where it has none, or is not installed."""
    if importlib.util.find_spec("triton") is None:
        return REFERENCE
    from thinpipe.kernels import gpu, gpu_blocks, gpu_rotated, gpu_select, gpu_turn, gpu_waves

    return _of("gpu", gpu, gpu_select, gpu_blocks, gpu_rotated, gpu_turn, gpu_waves, *_PLAIN)


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
    if device.type == "cuda" and torch.version.cuda is not None:
        return gpu_kernels()
    return cpu_kernels() if device.type == "cpu" else REFERENCE
