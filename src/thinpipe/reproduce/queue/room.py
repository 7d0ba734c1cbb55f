"""Whether a machine has memory for one more training beside those that run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

_SPARE = 1.3
"""How much more than the mean of the others one may take."""


def room_on(device: str) -> Callable[[int], bool]:
    """Returns what tells whether one more has room beside so many: of the memory that these took since now, each.

    Args:
        device: what all of them train on.
    """
    before = free_bytes(device)

    def has_room(count: int) -> bool:
        now = free_bytes(device)
        if now is None or before is None:
            return count < (os.cpu_count() or 1)
        return now > _SPARE * (before - now) / max(1, count)

    return has_room


def free_bytes(device: str) -> int | None:
    """Tells how much memory nobody uses; None where nobody knows."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(torch.device(device))[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if kilobytes is None else 1024 * int(kilobytes)
