"""One replica of ``thinpipe bench data-parallel``: its training step, whole and in parts.

::

    whole       data  forward  backward with all-reduce under it  optimizer      nobody waits for anybody
    phases      data | forward | backward with all-reduce | optimizer            all ranks wait at every bar
    alone             (forward) | backward |                                     DDP's no_sync: no all-reduce
    all-reduce                              | the same buckets, nothing else |

What the all-reduce adds to a step is the backward of *phases* less that of *alone*; the rest of it is hidden.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, distributed, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from thinpipe.bench.data_parallel_source import Source
from thinpipe.bench.seating import slowest
from thinpipe.bench.shapes import Shape, Whole, loss, optimizer_of

OPTIMIZERS = ("sgd", "adamw", "adamw_fused")
PHASES = ("data", "forward", "backward", "optimizer")
ALONE, ALL_REDUCE = "backward alone", "all-reduce alone"

Times: TypeAlias = dict[str, float]


class Replica:
    """A model that all ranks have, with all optimizers, which take turns.

    Args:
        shape: the model.
        rows: of this rank's batch.
        device: where it is.
        rank: of this process, for its own data.
        seed: of weights and data.
    """

    def __init__(self, shape: Shape, rows: int, device: torch.device, *, rank: int, seed: int) -> None:
        torch.manual_seed(seed)
        model = Whole(shape.model()).to(device)
        self._device = device
        self._source = Source(shape, rows, device, seed + rank)
        self.buckets = bucket_sizes(model, *self._source.batch())
        self._messages = [torch.zeros(size, device=device) for size in self.buckets]
        self._module = DistributedDataParallel(model)
        self._optimizers = {name: optimizer_of(name, self._module.parameters()) for name in OPTIMIZERS}

    def variants(self) -> dict[str, Callable[[], Times]]:
        """Names what is timed; each gives seconds by name."""
        found: dict[str, Callable[[], Times]] = {}
        for name in OPTIMIZERS:
            found[f"{name} whole"] = lambda name=name: self.whole(name)  # type: ignore[misc]
            found[f"{name} phases"] = lambda name=name: self.phases(name)  # type: ignore[misc]
        return found | {ALONE: self.backward_alone, ALL_REDUCE: self.all_reduce_alone}

    def whole(self, name: str) -> Times:
        """Takes a step as anybody would, with a clock that is read as Epipe's: without waiting for a GPU."""
        optimizer, stamps = self._optimizers[name], []

        def step() -> None:
            stamps.append(time.perf_counter())
            inputs, targets = self._source.batch()
            stamps.append(time.perf_counter())
            value = loss(self._module(inputs), targets)
            stamps.append(time.perf_counter())
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            value.item()
            stamps.append(time.perf_counter())
            self._wait()

        seconds = slowest(step)
        began, handed, launched, ended = stamps
        return {
            f"{name} whole": seconds,
            f"{name} timer data": handed - began,
            f"{name} timer forward": launched - handed,
            f"{name} timer backward": ended - launched,
        }

    def phases(self, name: str) -> Times:
        """Takes a step with all ranks waiting for each other between its parts."""
        optimizer, kept = self._optimizers[name], _Kept()

        def forward() -> None:
            kept.loss = loss(self._module(kept.inputs), kept.targets)

        def data() -> None:
            kept.inputs, kept.targets = self._source.batch()

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        parts = (data, forward, lambda: kept.loss.backward(), update)
        return {f"{name} {phase}": self._seconds(part) for phase, part in zip(PHASES, parts, strict=True)}

    def backward_alone(self) -> Times:
        """Goes backward without telling other ranks."""
        inputs, targets = self._source.batch()
        with self._module.no_sync():
            value = loss(self._module(inputs), targets)
            seconds = self._seconds(lambda: value.backward())
        self._module.zero_grad()
        return {ALONE: seconds}

    def all_reduce_alone(self) -> Times:
        """Sums buckets of the sizes that gradients are summed in, all under way at once as they are there."""

        def exchange() -> None:
            works = [distributed.all_reduce(message, async_op=True) for message in self._messages]
            for work in works:
                assert work is not None
                work.wait()

        return {ALL_REDUCE: self._seconds(exchange)}

    def _seconds(self, part: Callable[[], object]) -> float:
        def finished() -> None:
            part()
            self._wait()

        self._wait()
        return slowest(finished)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class _Kept:
    """What one phase leaves for the next."""

    inputs: Any
    targets: Tensor
    loss: Tensor


def bucket_sizes(model: nn.Module, inputs: Any, targets: Tensor) -> list[int]:
    """Finds the elements of each bucket in which ``DistributedDataParallel`` sums gradients, in order.

    After the first step it forms them anew, in the order in which gradients came; so the second one is looked at.
    """
    probe = DistributedDataParallel(copy.deepcopy(model))
    sizes: list[int] = []

    def noted(buffer: Tensor) -> Future[Tensor]:
        sizes.append(buffer.numel())
        done: Future[Tensor] = Future()
        done.set_result(buffer)
        return done

    # No function with types of its own, which DDP would compare with objects where they are texts.
    probe.register_comm_hook(None, lambda _, bucket: noted(bucket.buffer()))
    for _ in range(2):
        sizes.clear()
        loss(probe(inputs), targets).backward()
    return list(sizes)
