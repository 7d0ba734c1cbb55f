"""How long a GPU computes: the host is told long before the GPU is done, so its own clock says nothing."""

from __future__ import annotations

import torch


class GpuTimes:
    """Times the actions of one step on a GPU.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._began: torch.cuda.Event | None = None
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def begin(self) -> None:
        """Notes that an action begins, unless one has."""
        if self._began is None:
            self._began = self._mark()

    def end(self) -> None:
        """Notes that the action was given to the GPU completely."""
        if self._began is not None:
            self._pairs.append((self._began, self._mark()))
            self._began = None

    def take(self) -> float:
        """Returns the seconds of all actions since the last time, waiting for the last of them."""
        pairs, self._pairs, self._began = self._pairs, [], None
        if pairs:
            pairs[-1][1].synchronize()
        return float(sum(begin.elapsed_time(end) for begin, end in pairs)) / 1000

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
