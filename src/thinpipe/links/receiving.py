"""The receiving end of a lane."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor
from torch import distributed as dist

from thinpipe.errors import PeerLost, StallError
from thinpipe.links.forecast import HEADER_SIZE, read_length
from thinpipe.links.lane import Lane
from thinpipe.links.meter import Meter


class ReceiveLane(Lane):
    """The receiving end of a lane.

    Args:
        group: a gloo process group.
        peer: the sender's rank in the group.
        lane: the sender's number for the lane.
        window: how many messages may be under way or wait here to be taken; the same at both ends.
        most: the longest message to be accepted, in bytes.
        deadline: seconds that the rest of a message may take once its head has come.
        meter: counts what is received.
        take: called with each message, in order, from the lane's own thread: no other thread has to wake up for it.
            The next one waits until it returns (default: messages wait for ``receive``).
        failed: called, where ``take`` is, when there will be no more messages, with what ``receive`` would raise, or
            what ``take`` itself has raised (default: nothing).
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        peer: int,
        lane: int,
        *,
        window: int = 4,
        most: int,
        deadline: float,
        meter: Meter,
        take: Callable[[Tensor], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        super().__init__(group, peer, lane, window, deadline)
        self._most, self._meter = most, meter
        self._take, self._failed = take, failed
        self._posted: deque[tuple[dist.Work, Tensor]] = deque()
        self._arrived: deque[Tensor] = deque()
        self._tail_since: float | None = None
        self._broken: PeerLost | None = None
        for _ in range(window):
            self._post()
        self._start()

    def receive(self) -> Tensor:
        """Takes the next message, a flat uint8 CPU tensor, waiting for as long as it takes to begin.

        Messages that had come before a connection broke are still given out.

        Raises:
            StallError: the message's head has come, and its tail did not within the deadline.
            PeerLost: the connection is broken.
            PacketError: what came is not a message of this lane; the lane cannot be used any more.
            Closed: the lane was aborted.
        """
        with self._changed:
            while not self._arrived and self._failure is None:
                if self._tail_since is None:
                    self._changed.wait()
                elif not self._changed.wait(max(0.0, self._tail_since + self._deadline - time.monotonic())):
                    self._check_tail()
            if self._aborted or not self._arrived:
                self._check()
            content = self._arrived.popleft()
            self._post()  # only now: a receiver that falls behind shall hold back its sender
            return content

    def _check_tail(self) -> None:
        waited = 0.0 if self._tail_since is None else time.monotonic() - self._tail_since
        if waited >= self._deadline:
            raise StallError(
                f"rank {self._peer} began message {self._sequence} on lane {self._lane} and did not finish it "
                f"within {self._deadline:g} s"
            )

    def _post(self) -> None:
        with self._changed:
            if self._failure is not None or self._broken is not None:
                return
            head = torch.empty(self._forecast.size(), dtype=torch.uint8)
            head.numpy()[:HEADER_SIZE] = 0  # should the peer send too little, an old header must not be read
            try:
                self._posted.append((self._group.recv([head], self._peer, self._head_tag), head))
            except RuntimeError as error:
                self._broken = self._lost(error)  # no failure yet: what was posted before may have come
            self._changed.notify_all()

    def _attend_one(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._posted or self._failure or self._broken)
            posted = self._posted[0] if self._posted else None
            if posted is None and self._broken is not None:
                self._fail(self._broken)
        try:
            # What is posted must be waited for even after a failure, which belongs to others as soon as it is known.
            self._report()
            if posted is None:
                return False
            content = self._awaited(*posted)
        except PeerLost as error:
            self._fail(error)
            self._report()
            return False
        except Exception as error:
            content = None
            self._fail(error)
        with self._changed:
            self._posted.popleft()
            if content is not None and self._failure is None and self._take is None:
                self._arrived.append(content)
            self._changed.notify_all()
        if content is not None and self._failure is None and self._take is not None:
            self._give(content, self._take)
        self._report()
        return True

    def _awaited(self, work: dist.Work, head: Tensor) -> Tensor | None:
        self._await(work)
        return self._complete(head) if self._failure is None else None

    def _give(self, content: Tensor, take: Callable[[Tensor], None]) -> None:
        try:
            take(content)
        except Exception as error:
            self._fail(error)
        else:
            self._post()

    def _report(self) -> None:
        """Tells that there will be no more messages, once, and not if that was this end's own wish."""
        if self._failure is not None and self._failed is not None:
            failed, self._failed = self._failed, None
            if not self._aborted:
                failed(self._failure)

    def _complete(self, head: Tensor) -> Tensor:
        length = read_length(head, lane=self._lane, window=self._window, sequence=self._sequence, most=self._most)
        end = HEADER_SIZE + length
        message = head if end <= head.numel() else self._fetch_tail(head, end)
        self._meter.count_received(max(end, head.numel()))
        with self._changed:
            self._sequence += 1
            self._forecast.note(length)
        return message[HEADER_SIZE:end]

    def _fetch_tail(self, head: Tensor, end: int) -> Tensor:
        message = torch.empty(end, dtype=torch.uint8)
        try:
            work = self._group.recv([message[head.numel() :]], self._peer, self._tail_tag)
        except RuntimeError as error:
            raise self._lost(error) from error
        with self._changed:
            self._tail_since = time.monotonic()
            self._changed.notify_all()
        message[: head.numel()] = head
        self._await(work)
        with self._changed:
            self._tail_since = None
        return message
