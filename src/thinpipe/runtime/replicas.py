"""What makes several replicas of a stage one: equal weights at the start, summed gradients after every step.

It is what DistributedDataParallel does, with the same buckets and the same sums, and not DDP itself: a step's gradients
come out of graphs of micro-batches that end in aliases of the parameters, so that DDP's hooks would never be called.
Each rank begins as soon as its own backward is over, while earlier stages still have theirs to do::

    worker 0   F F F F ──────── B ── B ── B ── B ═╗             ═══  adding up with the same worker
    worker 1     F B F B F B F B ═══════╗                            of all other replicas

Sums go through gloo and the memory of the host, whatever the device: a rank that waits inside NCCL for one that failed
could be got out by nothing but its own end. In gloo no wait can be called off either, but connections can be broken.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thinpipe.errors import BatchError, PeerLost
from thinpipe.runtime.agreement import part
from thinpipe.runtime.whereabouts import Whereabouts

_BUCKET = 25 << 20
"""Bytes that are added up at once: enough to be worth a message, and few enough for several to be under way."""

_UNDER_WAY = 4
"""Buckets: while one is summed, others are copied."""

_FOREVER = timedelta(days=365)


class Siblings(Protocol):
    """The other replicas of a rank's stages."""

    seconds: float
    bytes: int

    def make_equal(self) -> None:
        """Gives all replicas the weights and buffers of the first."""

    def set_gradients_aside(self) -> None:
        """Keeps the gradients of earlier steps, sums already, out of the sum of this one."""

    def sum_gradients(self) -> None:
        """Adds the sum over all replicas to what was set aside, and gives all the buffers of the first."""

    def close(self) -> None:
        """Gets whoever waits for others out."""


class OnlyChild:
    """Where there is one replica, nothing needs to be done."""

    seconds = 0.0
    bytes = 0

    def make_equal(self) -> None:
        """Has nothing to do."""

    set_gradients_aside = sum_gradients = close = make_equal


class Twins:
    """The ranks with the same stages in all replicas.

    Args:
        module: a tree of this rank's stages; not the pipeline, which would then never be let go.
        group: a gloo group of these ranks, in the order of replicas, that nobody else uses.
        ranks: their numbers among all ranks.
        where: told whom this rank waits for.
        failed: told of a broken connection, and whose it is, where only one comes into question.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup,
        ranks: Sequence[int],
        *,
        where: Whereabouts,
        failed: Callable[[BaseException, int | None], None],
    ) -> None:
        self.seconds = 0.0
        self.bytes = 0
        named = dict(module.named_parameters())
        self._names, self._parameters = list(named), list(named.values())
        self._module, self._group, self._ranks = module, group, ranks
        self._where, self._failed = where, failed
        self._before: list[Tensor | None] = []
        # Of twins that wait for each other in a ring, the one who waits for nobody is found by following it.
        self._next = ranks[(group.rank() + 1) % group.size()]

    def make_equal(self) -> None:
        """Gives all replicas the weights and buffers of the first."""
        with torch.no_grad():
            self._copy_from_first([*self._parameters, *self._buffers()], "its weights")

    def set_gradients_aside(self) -> None:
        """Keeps the gradients of earlier steps, sums already, out of the sum of this one."""
        self._before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None

    def sum_gradients(self) -> None:
        """Adds the sum over all replicas to what was set aside, and gives all the buffers of the first."""
        began, self.bytes = time.perf_counter(), 0
        with torch.no_grad():
            shared = self._agree()
            for k in shared:
                parameter = self._parameters[k]
                grad = parameter.grad
                parameter.grad = torch.zeros_like(parameter) if grad is None else _dense(grad)
            self._pass(
                [_plain(self._parameters[k].grad) for k in shared], self._sum, "its gradients", lambda bucket: bucket
            )
            for parameter, before in zip(self._parameters, self._before, strict=True):
                if before is not None:
                    parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)
            self._before = []
            # As DDP does it: statistics of the other replicas' rows are forgotten.
            self._copy_from_first(self._buffers(), "its buffers")
        self.seconds = time.perf_counter() - began

    def close(self) -> None:
        """Gets whoever waits for others out."""
        part(self._group)

    def _buffers(self) -> list[Tensor]:
        return list(self._module.buffers())

    def _agree(self) -> list[int]:
        """Finds the parameters of which any replica has a gradient.

        Not all have: one without rows has none, and a layer that only some inputs need leaves its weights without.
        """
        if not self._parameters:
            return []
        trained = [parameter.requires_grad for parameter in self._parameters]
        have = [parameter.grad is not None for parameter in self._parameters]
        counts = torch.tensor([trained, have], dtype=torch.int32)
        self._wait(self._sum(counts), "what it has gradients of")
        everybody = self._group.size()
        for name, count in zip(self._names, counts[0].tolist(), strict=True):
            if count not in (0, everybody):
                raise BatchError(
                    f"{name} is trained in {count} of {everybody} replicas (ranks {list(self._ranks)}); set "
                    "requires_grad alike on all of them"
                )
        return [k for k, count in enumerate(counts[1].tolist()) if count]

    def _copy_from_first(self, tensors: Sequence[Tensor], what: str) -> None:
        # Bytes, because flags and counters are buffers as well.
        self._pass(tensors, self._copy, what, lambda bucket: bucket.view(torch.uint8))

    def _pass(
        self,
        tensors: Sequence[Tensor],
        send: Callable[[Tensor], dist.Work],
        what: str,
        view: Callable[[Tensor], Tensor],
    ) -> None:
        """Has tensors changed in buckets, some of which are under way at a time."""
        under_way: deque[tuple[dist.Work, Tensor, list[Tensor]]] = deque()
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket]).cpu()
            under_way.append((send(view(flat)), flat, bucket))
            if len(under_way) == _UNDER_WAY:
                self._take(*under_way.popleft(), what)
        while under_way:
            self._take(*under_way.popleft(), what)

    def _take(self, work: dist.Work, flat: Tensor, bucket: Sequence[Tensor], what: str) -> None:
        self._wait(work, what)
        self.bytes += flat.numel() * flat.element_size()
        for tensor, values in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
            tensor.copy_(values.view(tensor.shape))

    def _sum(self, tensor: Tensor) -> dist.Work:
        options = dist.AllreduceOptions()
        options.timeout = _FOREVER
        return self._posted(lambda: self._group.allreduce([tensor], options))

    def _copy(self, tensor: Tensor) -> dist.Work:
        options = dist.BroadcastOptions()
        options.rootRank, options.timeout = 0, _FOREVER
        return self._posted(lambda: self._group.broadcast([tensor], options))

    def _posted(self, post: Callable[[], dist.Work]) -> dist.Work:
        try:
            return post()
        except RuntimeError as error:
            raise self._lost(error) from error

    def _wait(self, work: dist.Work, what: str) -> None:
        with self._where.waiting(what, self._next):
            try:
                work.wait(_FOREVER)
            except RuntimeError as error:
                lost = self._lost(error)
                # Here, where this rank is still known to wait: it may be told who is to blame.
                self._failed(lost, self._next if self._group.size() == 2 else None)
                raise lost from error

    def _lost(self, error: RuntimeError) -> PeerLost:
        reason = str(error).splitlines()[0]
        return PeerLost(f"the connection between ranks {list(self._ranks)} broke: {reason}")


def _dense(grad: Tensor) -> Tensor:
    return grad if grad.layout is torch.strided else grad.to_dense()


def _plain(grad: Tensor | None) -> Tensor:
    assert grad is not None
    return torch.view_as_real(grad) if grad.is_complex() else grad


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Sorts tensors by type and cuts them into buckets, the same way on all ranks."""
    kinds = dict.fromkeys(tensor.dtype for tensor in tensors)
    for dtype in kinds:
        bucket: list[Tensor] = []
        size = 0
        for tensor in tensors:
            if tensor.dtype != dtype or not tensor.numel():
                continue
            bucket.append(tensor)
            size += tensor.numel() * tensor.element_size()
            if size >= _BUCKET:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket
