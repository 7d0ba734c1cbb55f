"""Brings tensors from the device of one stage to that of the next, beside the computation.

A copy runs on streams of its own. It waits for the event that says its source is computed, and the next stage's compute
stream waits for the copy; neither stage waits for anything else. Stages that share a device compute on one stream, and
nothing is copied between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

Ready: TypeAlias = dict[torch.device, torch.cuda.Event]
"""For each GPU, when what was computed on it so far is ready."""


def mark_ready(devices: Iterable[torch.device]) -> Ready:
    """Marks the point that the current stream of each GPU among the devices has come to."""
    ready: Ready = {}
    for device in set(devices):
        if device.type == "cuda":
            ready[device] = torch.cuda.Event()
            ready[device].record(torch.cuda.current_stream(device))
    return ready


class Mover:
    """Copies tensors to one device, on streams that it keeps for the purpose.

    Args:
        device: where tensors are wanted.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def _stream(self, device: torch.device) -> torch.cuda.Stream | None:
        if device.type != "cuda":
            return None
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def fetch(self, tensor: Tensor, ready: Ready) -> Tensor:
        """Returns the tensor on the wanted device, safe to use on its current stream.

        Args:
            tensor: where it was computed.
            ready: from ``mark_ready``, after it was computed.
        """
        if tensor.device == self.device:
            return tensor
        return self.copied(tensor, ready)

    def copied(self, tensor: Tensor, ready: Ready) -> Tensor:
        """Copies the tensor to the wanted device, even if it is there already."""
        source, target = self._stream(tensor.device), self._stream(self.device)
        if source is not None and tensor.device in ready:
            source.wait_event(ready[tensor.device])
        # A copy from or to pageable memory would read or write it after the host went on: there the host waits.
        alongside = source is not None and target is not None
        with torch.cuda.stream(source), torch.cuda.stream(target):
            copy = tensor.to(self.device, non_blocking=alongside, copy=True)
        if source is not None:
            tensor.record_stream(source)
        if target is not None:
            using = torch.cuda.current_stream(self.device)
            using.wait_stream(target)
            copy.record_stream(using)
        return copy
