"""Brings packets from a stage's device to the wire and back, beside the computation.

On the CPU there is nothing to bring. On a GPU a packet is encoded on a stream of its own, which waits for the tensor to
be computed, and only its few bytes are copied to the host; the other way round likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from thinpipe.codecs import Packet
from thinpipe.runtime.transfer import Ready

T = TypeVar("T")


class Stager:
    """Works for one lane in one thread.

    Args:
        device: that of the stage at this end.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None

    @contextmanager
    def beside(self, ready: Ready) -> Iterator[None]:
        """Surrounds work on what is computed once the events have come; the computation goes on meanwhile."""
        if self.device.type != "cuda":
            yield
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        for event in ready.values():
            self._stream.wait_event(event)
        with torch.cuda.stream(self._stream):
            yield

    def to_host(self, make: Callable[[], T], host: Callable[[T], T], ready: Ready) -> T:
        """Makes something of tensors on the device and brings it to the host; returns when it is there."""
        with self.beside(ready):
            made = host(make())
        if self._stream is not None:
            self._stream.synchronize()
        return made

    def from_host(self, packet: Packet) -> Packet:
        """Brings a packet to the device; call it inside ``beside``."""
        return packet if self.device.type == "cpu" else packet.to(self.device)

    def mark(self) -> Ready:
        """Tells when what was begun inside ``beside`` will be done."""
        if self._stream is None:
            return {}
        event = torch.cuda.Event()
        event.record(self._stream)
        return {self.device: event}


def wait_for(tensors: list[Tensor], ready: Ready) -> None:
    """Has the current stream wait for tensors that another stream makes."""
    for device, event in ready.items():
        stream = torch.cuda.current_stream(device)
        stream.wait_event(event)
        for tensor in tensors:
            if tensor.device == device:
                tensor.record_stream(stream)


def come_true(ready: Ready) -> None:
    """Waits, in a thread that has nothing else to do, until something is computed."""
    for event in ready.values():
        event.synchronize()


def pinned(packet: Packet) -> Packet:
    """Copies a packet's sections to memory that a GPU can write while the host goes on."""
    if packet.device.type != "cuda":
        return packet

    def copied(section: Tensor) -> Tensor:
        host = torch.empty(section.shape, dtype=section.dtype, pin_memory=True)
        return host.copy_(section, non_blocking=True)

    return Packet(packet.spec, packet.dtype, packet.shape, packet.order, tuple(map(copied, packet.sections)))
