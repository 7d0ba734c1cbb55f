"""What joins one half to the other as long as one connection lasts: two lanes there and two back.

::

    client   first ──► activations of cut 0 ──► middle ──► activations of cut 1 ──► last    client
                   ◄── gradients            ◄──        ◄── gradients            ◄──
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from thinpipe.links import Meter
from thinpipe.links.net import Channel
from thinpipe.remote.cost import HalfCost
from thinpipe.remote.gpu_times import GpuTimes
from thinpipe.remote.polite import PolitePost
from thinpipe.remote.turns import Turns
from thinpipe.runtime.crossing import Crossing
from thinpipe.runtime.parcel import Cargo, Edge
from thinpipe.runtime.post import Opening, Receiver, Sender, Way
from thinpipe.runtime.whereabouts import Whereabouts
from thinpipe.trace import NO_TRACE, AnyTracer

U = (0, 1, 0)
"""Which half has each stage: 0 is the client, 1 the server."""

CLIENT, SERVER = 0, 1
_JOIN = 5.0


class Wires:
    """The lanes of one connection, and the post that uses them.

    Args:
        channel: the connection.
        half: which half this is.
        crossings: the codecs of the cuts.
        chunks: how many messages a step has on each lane.
        device: of this half's stages.
        most: the longest message to be accepted, in bytes; see ``Post`` for how large its tensors may be.
        turns: the queue at the device (default: nobody else computes there).
        tracer: told when what happened (default: nobody).
    """

    def __init__(
        self,
        channel: Channel,
        half: int,
        crossings: Mapping[Edge, Crossing],
        *,
        chunks: int,
        device: torch.device,
        most: int,
        turns: Turns | None = None,
        tracer: AnyTracer = NO_TRACE,
    ) -> None:
        self.channel = channel
        self.failure: BaseException | None = None
        self.where = Whereabouts(U)
        self._chunks, self._most = chunks, most
        self._lock = threading.Lock()
        self._ways: list[Way] = []
        outgoing: list[tuple[Way, Sender]] = []
        incoming: list[tuple[Way, Opening]] = []
        for number, edge in enumerate((Edge(0, 1), Edge(1, 2))):
            for cargo in Cargo:
                way = Way(edge, number, cargo, 1 - half, device, crossings[edge], Meter(), channel.peer)
                lane = 2 * number + cargo
                self._ways.append(way)
                if (U[edge.source] == half) == (cargo is Cargo.ACTIVATION):
                    # What crosses the second cut is answered by something that must cross again; of the first cut's
                    # messages there are always enough on their way. See ``schedule.stream``.
                    outgoing.append((way, channel.sender(lane, way.meter, urgent=number == 1)))
                else:
                    incoming.append((way, partial(self._opened, lane, way.meter)))
        self._outgoing = [way for way, _ in outgoing]
        specs = frozenset(s for c in crossings.values() for s in (c.there.spec, c.back.spec) if s is not None)
        self.post = PolitePost(
            outgoing, incoming, specs=specs, where=self.where, failed=self._broken, most=most, tracer=tracer
        )
        self.post.turns, self.post.chunks = turns, chunks
        self.post.times = GpuTimes(device) if device.type == "cuda" else None
        channel.when_broken(lambda error: self._broken(error, 1 - half))

    def _opened(
        self, lane: int, meter: Meter, *, take: Callable[[Tensor], None], failed: Callable[[Exception], None]
    ) -> Receiver:
        return self.channel.receiver(
            lane, most=self._most, window=2 * self._chunks, meter=meter, take=take, failed=failed
        )

    def _broken(self, error: BaseException, _: int) -> None:
        with self._lock:
            if self.failure is None:
                self.failure = error
        if isinstance(error, Exception):
            self.channel.break_off(error)
        # A lane may fail before all are open; then the channel, which has failed with it, tells the same once more.
        if hasattr(self, "post"):
            self.post.close()

    @property
    def received(self) -> int:
        """Bytes that have come on all lanes."""
        return sum(way.meter.snapshot().received for way in self._ways)

    def lap(self, computed: float) -> HalfCost:
        """Reads what has crossed since the last lap, and what it took."""
        readings = {id(way): way.meter.lap() for way in self._ways}
        sent, received = self.channel.sent.lap(), self.channel.received.lap()
        out = [readings[id(way)] for way in self._outgoing]
        into = [reading for key, reading in readings.items() if key not in {id(way) for way in self._outgoing}]
        return HalfCost(
            computed=computed,
            stalled=self.post.stalled,
            encode=sum(r.encode for r in out),
            decode=sum(r.decode for r in into),
            sent=sent.sent,
            received=received.received,
            raw_sent=sum(r.raw for r in out),
            raw_received=sum(r.raw for r in into),
            peak_sent=sent.peak,
            peak_received=received.peak,
        )

    def close(self) -> None:
        """Ends the post, and waits until nothing is packed any more: codecs remember what they pack.

        The channel is its owner's.
        """
        self.post.close()
        self.post.join(time.monotonic() + _JOIN)
