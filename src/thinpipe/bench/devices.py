"""Where a benchmark runs: ``cuda``, a list such as ``cuda:0,cuda:1``, or ``cpu:4``, four cores as four devices."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from thinpipe.errors import DeviceError


@dataclass(frozen=True)
class Devices:
    """The devices a row may use.

    Args:
        text: as written on the command line.
        places: one a stage, in order; a device may be listed more than once.
        shared: whether one device takes all stages of a row that has more stages than there are devices.
    """

    text: str
    places: tuple[torch.device, ...]
    shared: bool = False

    @classmethod
    def parse(cls, text: str | None) -> Devices:
        """Reads what was written; by default all GPUs, or without any the cores.

        Raises:
            DeviceError: there is no such device, or the text names none.
        """
        if text is None:
            text = "cuda" if torch.cuda.is_available() else f"cpu:{os.cpu_count() or 1}"
        if text.startswith("cpu"):
            return cls(text, (torch.device("cpu"),) * _stages(text))
        if text == "cuda" and torch.cuda.is_available():
            return cls(text, tuple(torch.device("cuda", k) for k in range(torch.cuda.device_count())), shared=True)
        places = tuple(_gpu(name) for name in text.split(","))
        return cls(text, places, shared=len(places) == 1)

    @property
    def cpu(self) -> bool:
        """Whether stages are cores."""
        return self.places[0].type == "cpu"

    def fit(self, n: int) -> bool:
        """Tells whether there is a device for each of ``n`` stages."""
        return self.shared or n <= len(self.places)

    def take(self, n: int) -> list[torch.device]:
        """Lists a device for each of ``n`` stages.

        Raises:
            DeviceError: there are too few.
        """
        if n <= len(self.places):
            return list(self.places[:n])
        if not self.shared:
            raise DeviceError(
                f"{n} stages need {n} devices, got {len(self.places)} from --devices {self.text}; "
                "list a device more than once, or choose other --rows"
            )
        return [self.places[0]] * n


def _stages(text: str) -> int:
    kind, _, number = text.partition(":")
    if kind != "cpu" or not number.isdecimal() or int(number) < 1:
        raise DeviceError(f"--devices {text!r} is no number of cores; write cpu:4 for four stages of one core each")
    return int(number)


def _gpu(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"{name!r} is no device; write cuda, cuda:0,cuda:1 or cpu:4") from error
    if device.type != "cuda" or (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"there is no {name} among {torch.cuda.device_count()} GPUs; write cpu:4 for four CPU cores")
    return torch.device("cuda", device.index or 0)


def gpus(devices: Iterable[torch.device]) -> list[torch.device]:
    """Lists the GPUs among the devices, each once."""
    return [device for device in dict.fromkeys(devices) if device.type == "cuda"]


def synchronize(devices: Iterable[torch.device]) -> None:
    """Waits until every GPU among the devices has done its work."""
    for device in gpus(devices):
        torch.cuda.synchronize(device)


def release(devices: Iterable[torch.device]) -> None:
    """Gives memory that nobody uses back to the GPUs, so that one row does not weigh on the next."""
    gc.collect()
    if gpus(devices):
        torch.cuda.empty_cache()


@contextmanager
def as_published(*, autotune: bool = False) -> Iterator[None]:
    """Computes as the published rows did: float32 throughout, and on the CPU one thread for whoever computes.

    With one thread in the caller every CPU stage has one as well: a stage is a core.

    Args:
        autotune: whether cuDNN tries its algorithms out (default: no, as published).
    """
    threads, tensor_cores = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=autotune, allow_tf32=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tensor_cores
        torch.set_num_threads(threads)


@contextmanager
def limited(devices: Iterable[torch.device], gib: float | None) -> Iterator[None]:
    """Takes GPUs for cards of less memory.

    cuDNN works in whatever is free: on a card of 140 GiB one convolution of a U-Net takes 12 GiB to work in, and does
    with little where there is little.

    Args:
        devices: those among them that are GPUs are limited.
        gib: to how much (default: what they have).
    """
    limited_gpus = gpus(devices) if gib is not None else []
    for gpu in limited_gpus:
        total = torch.cuda.get_device_properties(gpu).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (gib or 0.0) * 2**30 / total), gpu)
    try:
        yield
    finally:
        for gpu in limited_gpus:
            torch.cuda.set_per_process_memory_fraction(1.0, gpu)
