"""Which pass over a stage is running in this thread: an ordinary one, one that will be recomputed, or a recomputation.

A layer may ask, to do a thing once a micro-batch (count it, update a statistic) although its forward runs twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum


class Phase(Enum):
    """The pass a stage is in."""

    ORDINARY = "ordinary"
    CHECKPOINTING = "checkpointing"
    RECOMPUTING = "recomputing"


class _Current(threading.local):
    phase: Phase = Phase.ORDINARY
    micro: int | None = None


_current = _Current()


@contextmanager
def entered(phase: Phase, micro: int) -> Iterator[None]:
    """Marks what runs inside, in this thread, as a pass of the phase over the micro-batch."""
    before = _current.phase, _current.micro
    _current.phase, _current.micro = phase, micro
    try:
        yield
    finally:
        _current.phase, _current.micro = before


def current_micro_batch() -> int | None:
    """Tells which micro-batch a stage is computing in this thread; ``None`` outside of a pipeline."""
    return _current.micro


def is_checkpointing() -> bool:
    """Tells whether the running forward will be recomputed later, its activations not being kept."""
    return _current.phase is Phase.CHECKPOINTING


def is_recomputing() -> bool:
    """Tells whether the running forward repeats an earlier one, for its backward.

    Side effects that must happen once a micro-batch belong under ``if not is_recomputing()``.
    """
    return _current.phase is Phase.RECOMPUTING
