"""The post of a half: it computes when it is its turn, and believes nothing that comes at the wrong time."""

from __future__ import annotations

from typing import Any

from thinpipe.errors import PacketError
from thinpipe.remote.gpu_times import GpuTimes
from thinpipe.remote.turns import Turns
from thinpipe.runtime.frame import Frame
from thinpipe.runtime.post import Post, Way


class PolitePost(Post):
    """A post whose worker waits for its turn at the device.

    Attributes:
        turns: the queue at the device; None if nobody else computes there.
        chunks: how many micro-batches a step may have.
        times: told when the device computes; None for the CPU, whose time is the worker's.
    """

    turns: Turns | None = None
    chunks = 1
    times: GpuTimes | None = None
    _has_turn = False

    def __init__(self, *args: Any, **options: Any) -> None:
        try:
            super().__init__(*args, **options)
        except BaseException:
            # The connection broke while its lanes were opened: nobody will close what was begun.
            for todo in self._todo.values():
                todo.put(None)
            raise

    def begin(self, step: int) -> None:
        """Has what is sent and received from now on belong to a step; what came for earlier ones is dropped."""
        super().begin(step)
        self._inbox.drop(lambda address: address[0] < step)

    def dispatch(self) -> None:
        """Sends off what was left so far, and waits for the device.

        It is called when everything that an action needs has come, and nothing but its computation is left.
        """
        super().dispatch()
        if self.turns is not None and not self._has_turn:
            self.turns.take()
            self._has_turn = True
        if self.times is not None:
            self.times.begin()

    def done(self) -> None:
        """Lets the next one compute."""
        if self.times is not None:
            self.times.end()
        if self.turns is not None and self._has_turn:
            self._has_turn = False
            self.turns.give()

    def _verify(self, way: Way, frame: Frame) -> None:
        super()._verify(way, frame)
        # The other half may be one step ahead, and has no reason to be further: nothing piles up here.
        if not self.step <= frame.step <= self.step + 1 or frame.micro >= self.chunks:
            raise PacketError(
                f"{way.other_end} sent micro-batch {frame.micro} of step {frame.step} while this end is at step "
                f"{self.step} of {self.chunks} micro-batches"
            )
