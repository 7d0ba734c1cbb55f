"""What one step of one rank took: time by what was done, bytes by link and direction."""

from __future__ import annotations

from dataclasses import dataclass

from thinpipe.links import Meter, Reading
from thinpipe.runtime.parcel import Cargo
from thinpipe.runtime.replicas import Siblings
from thinpipe.runtime.ways import Ways


@dataclass(frozen=True)
class Lane:
    """One direction of one edge, as this rank saw it since the pipeline began.

    Args:
        source: the stage that activations come from.
        target: the stage that gradients come from.
        cargo: activations or gradients.
        peer: the rank at the other end.
        outgoing: whether this rank sends.
        reading: bytes, times and rates.
    """

    source: int
    target: int
    cargo: Cargo
    peer: int
    outgoing: bool
    reading: Reading

    @property
    def ratio(self) -> float:
        """Bytes that travelled over bytes of the tensors; 1 before anything did."""
        travelled = self.reading.sent if self.outgoing else self.reading.received
        return travelled / self.reading.raw if self.reading.raw else 1.0


@dataclass(frozen=True)
class Statistics:
    """One step of one rank.

    Args:
        seconds: how long it took.
        computed: of that, computing.
        stalled: of that, waiting for another rank.
        lanes: what crossed, summed over all steps so far.
        tied: what the gradients of weights that ranks share have cost beside that.
        reducing: seconds of this step in which gradients were added up over replicas, waiting for them included.
        reduced: bytes of gradients and buffers that were.
    """

    seconds: float
    computed: float
    stalled: float
    lanes: tuple[Lane, ...]
    tied: Reading
    reducing: float = 0.0
    reduced: int = 0


def statistics_of(
    seconds: float, computed: float, stalled: float, ways: Ways, tied: Meter, siblings: Siblings
) -> Statistics:
    """Reads all meters."""
    sending = {id(way) for way, _ in ways.outgoing}
    lanes = tuple(
        Lane(way.edge.source, way.edge.target, way.cargo, way.peer, id(way) in sending, way.meter.snapshot())
        for way in ways.all
    )
    return Statistics(seconds, computed, stalled, lanes, tied.snapshot(), siblings.seconds, siblings.bytes)
