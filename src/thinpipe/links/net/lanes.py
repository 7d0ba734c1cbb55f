"""Lanes of a channel: messages of bytes, in order, beside each other on one connection."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from thinpipe.errors import PacketError
from thinpipe.links.local import Closed
from thinpipe.links.meter import Meter
from thinpipe.links.net.outbox import MOST_WAITING, Load, Outbox
from thinpipe.links.net.pieces import HEAD, Assembly, Head

_log = logging.getLogger("thinpipe")


class Line(Protocol):
    """What a sender needs to know of its connection."""

    changed: threading.Condition
    outbox: Outbox

    def check(self) -> None:
        """Raises the reason why nothing can be sent any more, if there is one."""


class NetSendLane:
    """The sending end of a lane.

    Args:
        line: the connection.
        lane: its number.
        meter: counts what is sent.
        urgent: whether its messages go before those of lanes that are not (default: no).
    """

    def __init__(self, line: Line, lane: int, meter: Meter, *, urgent: bool = False) -> None:
        self._line, self._lane, self._meter, self._urgent = line, lane, meter, urgent
        self._begun = 0
        self._under_way = 0
        self._aborted = False

    def send(self, parts: Sequence[Tensor], sent: Callable[[], None] | None = None) -> None:
        """Sends flat uint8 CPU tensors as one message; they are copied, and may be changed at once.

        Returns when the message is queued, after waiting while 8 MiB of the lane wait to leave.

        Args:
            parts: the message.
            sent: called from the I/O thread when all of it has left; must not block (default: nothing).

        Raises:
            PeerLost: the connection is broken.
            StallError: the other end takes nothing, or gives no sign of life, for as long as the channel allows.
            Closed: the lane was aborted, or this end of the channel closed.
        """
        for part in parts:
            if part.dtype != torch.uint8 or part.dim() != 1 or part.device.type != "cpu":
                raise TypeError(f"a lane carries flat uint8 CPU tensors, got {part.dtype} {tuple(part.shape)}")
        self._wait_until(lambda: self._line.outbox.waiting_on(self._lane) <= MOST_WAITING)
        content = _joined(parts)

        def left(size: int, is_last: bool) -> None:  # noqa: FBT001
            self._left(load, size, sent if is_last else None, is_last=is_last)

        load = Load(content, self._lane, self._number, time.monotonic(), left, self._urgent)
        with self._line.changed:
            self._check()
            self._under_way += 1
            self._line.outbox.put(load)

    def flush(self) -> None:
        """Waits until every message has left.

        Raises:
            PeerLost: the connection is broken.
            StallError: the other end takes nothing, or gives no sign of life, for as long as the channel allows.
            Closed: the lane was aborted, or this end of the channel closed.
        """
        self._wait_until(lambda: self._under_way == 0)

    def abort(self) -> None:
        """Wakes everybody who waits for the lane, now and later, with ``Closed``; drops what has not begun to leave."""
        with self._line.changed:
            self._aborted = True
            self._line.outbox.drop(self._lane)

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        with self._line.changed:
            # The connection breaks, and this wait ends, when the other end takes nothing for too long.
            self._check()
            while not ready():
                self._line.changed.wait(1.0)
                self._check()

    def _check(self) -> None:
        if self._aborted:
            raise Closed
        self._line.check()

    def _number(self) -> int:
        self._begun += 1
        return self._begun - 1

    def _left(self, load: Load, size: int, sent: Callable[[], None] | None, *, is_last: bool) -> None:
        self._meter.count_sent(size, since=load.since, messages=int(is_last))
        if sent is not None:
            try:
                sent()
            except Exception:
                _log.exception("what was to be called after a message had left has failed")
        if is_last:
            with self._line.changed:
                self._under_way -= 1
                self._line.changed.notify_all()


class NetReceiveLane:
    """The receiving end of a lane, with a thread of its own, which hands out the messages.

    Args:
        lane: its number.
        most: the longest message to be accepted, in bytes.
        window: how many messages may wait to be taken; with one more, the other end has broken its promise.
        meter: counts what is received.
        take: called with each message, in order; the next one waits until it returns.
        failed: called when there will be no more messages, with the reason, or with what ``take`` has raised.
    """

    def __init__(
        self,
        lane: int,
        *,
        most: int,
        window: int,
        meter: Meter,
        take: Callable[[Tensor], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._lane, self._window, self._meter = lane, window, meter
        self._take, self._failed = take, failed
        self._assembly: Assembly | None = Assembly(lane, most)
        self._waiting: deque[Tensor] = deque()
        self._failure: Exception | None = None
        self._aborted = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._attend, name=f"thinpipe net lane {lane}", daemon=True)
        self._thread.start()

    def abort(self) -> None:
        """Ends the lane: nothing more is taken, and nobody told; what still comes is thrown away."""
        with self._changed:
            self._aborted = True
            self._assembly = None
            self._waiting.clear()
            self._changed.notify_all()

    def add(self, head: Head, body: memoryview) -> None:
        """Adds a piece that came; for the I/O thread.

        Raises:
            PacketError: it is not what was to come.
        """
        assembly = self._assembly
        if assembly is None:
            return
        message = assembly.add(head, body)
        self._meter.count_received(HEAD + len(body), messages=int(message is not None))
        if message is None:
            return
        with self._changed:
            if len(self._waiting) >= self._window:
                raise PacketError(
                    f"message {head.number} on lane {self._lane} came while {self._window} others waited to be taken, "
                    f"which is all that was agreed on"
                )
            if self._assembly is not None:
                self._waiting.append(message)
            self._changed.notify_all()

    def end(self, failure: Exception) -> None:
        """Tells that no more messages will come; those that are complete are still taken."""
        with self._changed:
            self._failure = self._failure or failure
            self._assembly = None
            self._changed.notify_all()

    def _attend(self) -> None:
        # A call for each message, so that nothing of it is kept alive while the thread waits for the next.
        while self._attend_one():
            pass

    def _attend_one(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._failure or self._aborted)
            message = self._waiting.popleft() if self._waiting else None
            failure = self._failure
        if message is not None:
            try:
                self._take(message)
            except Exception as error:
                failure = error
            else:
                return True
        with self._changed:
            aborted = self._aborted
            self._assembly = None
            self._waiting.clear()
        if failure is not None and not aborted:
            self._failed(failure)
        return False


def _joined(parts: Sequence[Tensor]) -> memoryview:
    """Lays parts out in one piece of memory."""
    message = torch.empty(sum(part.numel() for part in parts), dtype=torch.uint8)
    # numpy keeps the interpreter's lock for small copies; each torch call would offer it to another thread.
    raw, start = message.numpy(), 0
    for part in parts:
        raw[start : start + part.numel()] = part.numpy()
        start += part.numel()
    return memoryview(raw)  # type: ignore[arg-type]
