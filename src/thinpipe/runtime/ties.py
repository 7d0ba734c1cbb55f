"""Weights that stages of several ranks share, such as an embedding that is also the last layer: one parameter, copied.

They begin equal, and stay so, because every rank that has a copy gets the sum of all copies' gradients. The first of
the ranks adds them up::

    rank 0   own gradient + what came ──┬──> sum        an empty message: no gradient
    rank 3   own gradient ──────────────┘   sum <── from rank 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thinpipe.errors import PacketError
from thinpipe.links import Meter, ReceiveLane, SendLane, Throttle
from thinpipe.runtime.assembly import Tie
from thinpipe.runtime.whereabouts import Whereabouts

_ROOM = 1024
"""Bytes a message may have beside those of its tensor."""


@dataclass
class _Copy:
    """This rank's copy of a shared weight, and the lanes to those that it trades gradients with."""

    parameter: nn.Parameter
    is_first: bool
    peers: list[int] = field(default_factory=list)
    out: list[SendLane] = field(default_factory=list)
    back: list[ReceiveLane] = field(default_factory=list)
    before: Tensor | None = None


class Ties:
    """The shared weights of one rank.

    Args:
        ties: those that this rank has.
        group: a gloo group, whose lanes from ``first_lane`` on are free.
        first_lane: the first of them.
        timeout: seconds in which a message must be taken.
        links: emulated links to other ranks.
        where: told what this rank waits for.
    """

    def __init__(
        self,
        ties: Sequence[Tie],
        group: dist.ProcessGroup,
        *,
        first_lane: int,
        timeout: float,
        links: Mapping[int, Throttle],
        where: Whereabouts,
    ) -> None:
        self.meter = Meter()
        self._where = where
        self._copies: list[_Copy] = []
        for tie in ties:
            parameter, (first, *others) = tie.parameter, tie.ranks
            copy = _Copy(parameter, is_first=group.rank() == first)
            there, back = first_lane + 2 * tie.number, first_lane + 2 * tie.number + 1
            if copy.is_first:
                there, back = back, there
            most = parameter.numel() * parameter.element_size() + _ROOM
            copy.peers = others if copy.is_first else [first]
            for peer in copy.peers:
                copy.out.append(
                    SendLane(group, peer, there, deadline=timeout, throttle=links.get(peer), meter=self.meter)
                )
                copy.back.append(ReceiveLane(group, peer, back, most=most, deadline=timeout, meter=self.meter))
            self._copies.append(copy)

    def make_equal(self) -> None:
        """Gives all copies the values of the first."""
        with torch.no_grad():
            for copy in self._copies:
                if copy.is_first:
                    _send(copy, copy.parameter)
                elif (value := self._received(copy, 0)) is not None:
                    copy.parameter.copy_(value)

    def counts(self, parameter: nn.Parameter) -> bool:
        """Tells whether this rank counts a parameter in norms over all ranks."""
        return all(copy.is_first for copy in self._copies if copy.parameter is parameter)

    def set_gradients_aside(self) -> None:
        """Keeps the gradients of earlier steps, sums already, out of the sum of this one."""
        for copy in self._copies:
            copy.before, copy.parameter.grad = copy.parameter.grad, None

    def sum_gradients(self) -> None:
        """Adds the sum of all copies' gradients to what was set aside."""
        for copy in self._copies:
            total = copy.parameter.grad
            if total is not None and total.layout is not torch.strided:
                total = total.to_dense()
            if copy.is_first:
                for k in range(len(copy.back)):
                    total = _sum(total, self._received(copy, k))
                _send(copy, total)
            else:
                _send(copy, total)
                total = self._received(copy, 0)
            if copy.parameter.requires_grad:
                copy.parameter.grad = _sum(copy.before, total)
            copy.before = None

    def flush(self) -> None:
        """Waits until everything was sent."""
        for copy in self._copies:
            for peer, lane in zip(copy.peers, copy.out, strict=True):
                with self._where.waiting("its readiness for shared weights", peer):
                    lane.flush()

    def close(self) -> None:
        """Wakes whoever waits."""
        for copy in self._copies:
            for lane in (*copy.out, *copy.back):
                lane.abort()

    def _received(self, copy: _Copy, k: int) -> Tensor | None:
        like = copy.parameter
        with self._where.waiting("the values of shared weights", copy.peers[k]):
            message = copy.back[k].receive()
        if not message.numel():
            return None
        if message.numel() != like.numel() * like.element_size():
            raise PacketError(f"{message.numel()} bytes came for a shared weight of shape {tuple(like.shape)}")
        return message.clone().view(like.dtype).view(like.shape).to(like.device)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _send(copy: _Copy, tensor: Tensor | None) -> None:
    parts = [] if tensor is None else [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)]
    for lane in copy.out:
        lane.send(parts)
