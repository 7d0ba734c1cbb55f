"""Measures variants against each other on a noisy machine: in turns, so that noise falls on all of them alike.

Every round runs each variant once, beginning with another one each time. A ratio is taken within each round and the
median over rounds is reported; the raw samples are kept beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

Variant: TypeAlias = Callable[[], None]
Track: TypeAlias = Callable[[range], Iterable[int]]


@dataclass(frozen=True)
class Samples:
    """The seconds each variant took in each round."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Returns the median time of a variant, in seconds."""
        return statistics.median(self.seconds[name])

    def ratio(self, numerator: str, denominator: str) -> float:
        """Returns how many times longer one variant took than another: the median over rounds."""
        pairs = zip(self.seconds[numerator], self.seconds[denominator], strict=True)
        return statistics.median(a / b for a, b in pairs)


def turns(names: Sequence[str], *, rounds: int, warm_up: int, track: Track = iter) -> Iterator[tuple[str, bool]]:
    """Lists whose turn it is, and whether it counts: all in each round, beginning with another one each time."""
    for turn in track(range(warm_up + rounds)):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            yield name, turn >= warm_up


def in_turns(
    variants: Mapping[str, Variant],
    *,
    rounds: int,
    devices: Iterable[torch.device] = (),
    warm_up: int = 2,
    track: Track = iter,
) -> Samples:
    """Times all variants in every round.

    Args:
        variants: what to time, by name.
        rounds: how often; more are less noisy.
        devices: GPUs to wait for before reading the clock (default: none).
        warm_up: rounds that are not counted (default: 2).
        track: wraps the rounds in a progress bar (default: none).
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    gpus = [device for device in set(devices) if device.type == "cuda"]
    for name, counted in turns(list(variants), rounds=rounds, warm_up=warm_up, track=track):
        _synchronize(gpus)
        began = time.perf_counter()
        variants[name]()
        _synchronize(gpus)
        if counted:
            seconds[name].append(time.perf_counter() - began)
    return Samples(seconds)


def _synchronize(gpus: list[torch.device]) -> None:
    for gpu in gpus:
        torch.cuda.synchronize(gpu)
