"""The sending end of a lane."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from thinpipe.errors import PeerLost, StallError
from thinpipe.links.forecast import HEADER_SIZE, write_header
from thinpipe.links.lane import Lane
from thinpipe.links.meter import Meter
from thinpipe.links.throttle import Throttle


class _Piece(NamedTuple):
    work: dist.Work
    size: int
    since: float
    is_last: bool
    sent: Callable[[], None] | None


class SendLane(Lane):
    """The sending end of a lane.

    Args:
        group: a gloo process group.
        peer: the receiver's rank in the group.
        lane: distinguishes lanes between the same two ranks, 0 to 65535.
        window: how many messages may be under way; the same at both ends. More hide a longer way, and hold more memory.
        deadline: seconds after which a peer that takes nothing is reported.
        throttle: makes the lane as slow as a thinner link; None for full speed.
        meter: counts what is sent.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        peer: int,
        lane: int,
        *,
        window: int = 4,
        deadline: float,
        throttle: Throttle | None = None,
        meter: Meter,
    ) -> None:
        super().__init__(group, peer, lane, window, deadline)
        self._throttle, self._meter = throttle, meter
        self._turn = threading.Lock()
        self._under_way = 0
        self._pieces: deque[_Piece] = deque()
        self._start()

    def send(self, parts: Sequence[Tensor], sent: Callable[[], None] | None = None) -> None:
        """Sends flat uint8 CPU tensors as one message; they are copied, and may be changed at once.

        Returns when the message is under way, after waiting for room in the window if need be.

        Args:
            parts: the message.
            sent: called from the lane's thread when all of it has left; must not block or raise (default: nothing).

        Raises:
            StallError: the window stayed full for the deadline. The message was not sent and may be tried again.
            PeerLost: the connection is broken.
            Closed: the lane was aborted.
        """
        for part in parts:
            if part.dtype != torch.uint8 or part.dim() != 1 or part.device.type != "cpu":
                raise TypeError(f"a lane carries flat uint8 CPU tensors, got {part.dtype} {tuple(part.shape)}")
        with self._turn:
            self._wait_until(lambda: self._under_way < self._window)
            message, head = self._pack(parts)
            with self._changed:
                self._under_way += 1
            self._hand_over(message, head, sent)
            self._check()

    def flush(self) -> None:
        """Waits until every message has left.

        Raises:
            StallError: that took longer than the deadline.
            PeerLost: the connection is broken.
            Closed: the lane was aborted.
        """
        self._wait_until(lambda: self._under_way == 0)

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._failure or ready(), self._deadline)
            self._check()
            if not in_time:
                raise StallError(
                    f"rank {self._peer} took nothing on lane {self._lane} for {self._deadline:g} s "
                    f"({self._under_way} messages under way); it is stuck, or its work takes longer than the deadline"
                )

    def _pack(self, parts: Sequence[Tensor]) -> tuple[Tensor, int]:
        """Lays a message out as header, content and padding, and tells the size of its head."""
        length = sum(part.numel() for part in parts)
        head = self._forecast.size()
        self._forecast.note(length)
        end = HEADER_SIZE + length
        message = torch.empty(max(end, head), dtype=torch.uint8)
        write_header(message, lane=self._lane, window=self._window, sequence=self._sequence, length=length, head=head)
        self._sequence += 1
        # numpy keeps the interpreter's lock for small copies; each torch call would offer it to another thread.
        raw, start = message.numpy(), HEADER_SIZE
        for part in parts:
            raw[start : start + part.numel()] = part.numpy()
            start += part.numel()
        raw[end:] = 0  # what was there before is none of the peer's business
        return message, head

    def _hand_over(self, message: Tensor, head: int, sent: Callable[[], None] | None) -> None:
        cut = message.numel() > head
        now = time.monotonic()
        post_head = partial(self._post, message[:head], self._head_tag, now, is_last=not cut, sent=sent)
        post_tail = partial(self._post, message[head:], self._tail_tag, now, is_last=True, sent=sent)
        if self._throttle is None:
            post_head()
            if cut:
                post_tail()
        else:
            arrival = self._throttle.deliver(head, post_head)
            if cut:
                self._throttle.deliver(message.numel() - head, post_tail, asked_after=arrival)

    def _post(self, piece: Tensor, tag: int, since: float, *, is_last: bool, sent: Callable[[], None] | None) -> None:
        with self._changed:
            if self._failure is not None:
                return
            try:
                work = self._group.send([piece], self._peer, tag)
            except RuntimeError as error:
                self._fail(self._lost(error))
                return
            self._pieces.append(_Piece(work, piece.numel(), since, is_last, sent))
            self._changed.notify_all()

    def _attend_one(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._failure)
            if not self._pieces:
                return False
            piece = self._pieces[0]
        try:
            self._await(piece.work)
        except PeerLost as error:
            self._fail(error)
            return False
        self._meter.count_sent(piece.size, since=piece.since, messages=int(piece.is_last))
        if piece.is_last and piece.sent is not None:
            piece.sent()
        with self._changed:
            self._pieces.popleft()
            self._under_way -= piece.is_last
            self._changed.notify_all()
        return True
