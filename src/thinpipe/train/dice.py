"""What is drawn in a step, as a function of the seed and the step: a run that is resumed draws the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from thinpipe.runtime.randomness import seed_of
from thinpipe.train.data import mixed


@contextmanager
def dice(seed: int, step: int, devices: Sequence[torch.device], *, apart: int = 0) -> Iterator[None]:
    """Seeds the default generators for what is surrounded, and sets them back afterwards.

    Args:
        seed: of the run.
        step: its number.
        devices: where something may be drawn; the CPU always counts.
        apart: of processes that must draw different numbers, which one this is; the first draws what one device alone
            would (default: the first).
    """
    gpus = list({device for device in devices if device.type == "cuda"})
    with torch.random.fork_rng(devices=gpus):
        alone = mixed(seed, step)
        torch.manual_seed(seed_of(f"{alone}.{apart}".encode()) if apart else alone)
        yield
