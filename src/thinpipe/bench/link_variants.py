"""The variants that ``thinpipe bench link`` times against each other: in each rank, a step that can be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import distributed

from thinpipe.bench.link_stage import Work, loss
from thinpipe.links import Throttle
from thinpipe.runtime.pipeline import Pipeline

Step: TypeAlias = Callable[[], None]


@dataclass(frozen=True)
class Seat:
    """What a variant is told of its place; the default process group (gloo) is there already.

    Args:
        rank: of this process, which is also its stage.
        work: what a step does.
        throttle: bits a second to hold oneself to, where the kernel does not slow the wire (None: at full speed).
    """

    rank: int
    work: Work
    throttle: float | None = None


@dataclass(frozen=True)
class Variant:
    """A way to take a step.

    Args:
        seated: makes the step of a rank, and cleans up behind it while the process group is still there.
        throttles: whether it can slow itself down; what cannot is left out where the kernel does not slow the wire.
    """

    seated: Callable[[Seat], AbstractContextManager[Step]]
    throttles: bool


@contextmanager
def _tdp_raw(seat: Seat) -> Iterator[Step]:
    from thinpipe.bench.link_tdp import tdp_step  # a second to import, which no other command should take

    yield tdp_step(seat.work, seat.rank)


@contextmanager
def _bare(seat: Seat) -> Iterator[Step]:
    """Sends all messages of a step in both directions at once, with no stages between: what the wire alone takes."""
    peer = 1 - seat.rank
    leaving = [seat.work.micro_batch() for _ in range(seat.work.micros)]
    coming = [torch.empty_like(message) for message in leaving]

    def step() -> None:
        receipts = [distributed.irecv(message, peer) for message in coming]
        for work in [*receipts, *(distributed.isend(message, peer) for message in leaving)]:
            assert work is not None
            work.wait()

    yield step


def _ours(codec: str | None) -> Callable[[Seat], AbstractContextManager[Step]]:
    @contextmanager
    def seated(seat: Seat) -> Iterator[Step]:
        work, rate = seat.work, seat.throttle
        stages = [work.stage(), work.stage()]
        throttle = None if rate is None else partial(Throttle, rate)
        with Pipeline(
            stages, chunks=work.micros, loss_fn=loss, codec=codec, grad_codec=codec, throttle=throttle
        ) as pipeline:
            inputs, targets = work.batch(), work.batch()

            def step() -> None:
                pipeline.step(inputs, targets)

            yield step

    return seated


EIGHT_BITS = "block:8/1024"

VARIANTS: dict[str, Variant] = {
    "tdp_raw": Variant(_tdp_raw, throttles=False),
    "bare": Variant(_bare, throttles=False),
    "raw": Variant(_ours(None), throttles=True),
    "coded": Variant(_ours(EIGHT_BITS), throttles=True),
}
