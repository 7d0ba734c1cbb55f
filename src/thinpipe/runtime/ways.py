"""Opens the lanes of one rank: two for each edge that leads to another rank, activations there and gradients back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist

from thinpipe.links import Meter, ReceiveLane, SendLane, Throttle
from thinpipe.runtime.assembly import Assembly
from thinpipe.runtime.crossing import Crossing
from thinpipe.runtime.parcel import Cargo, Edge
from thinpipe.runtime.post import Opening, Way

MOST = 1 << 34
"""Bytes of a message; one that claims to have more is refused."""


@dataclass
class Ways:
    """The ways out of and into one rank, and the emulated links to others that they share."""

    outgoing: list[tuple[Way, SendLane]] = field(default_factory=list)
    incoming: list[tuple[Way, Opening]] = field(default_factory=list)
    links: dict[int, Throttle] = field(default_factory=dict)

    @property
    def all(self) -> list[Way]:
        """All ways."""
        return [way for way, _ in (*self.outgoing, *self.incoming)]


def open_ways(
    group: dist.ProcessGroup,
    assembly: Assembly,
    crossings: Mapping[Edge, Crossing],
    device: torch.device,
    *,
    timeout: float,
    throttle: Callable[[], Throttle] | None,
) -> Ways:
    """Opens a lane for each direction of each edge between this rank and another.

    Args:
        group: a gloo group that nobody else uses.
        assembly: the stages, and where they are.
        crossings: the codecs of the edges.
        device: of this rank's stages.
        timeout: seconds in which a message must be taken.
        throttle: makes an emulated link to another rank, which all lanes to it share.
    """
    ways, rank = Ways(), group.rank()
    if throttle is not None:
        ways.links.update({peer: throttle() for peer in sorted(set(assembly.workers)) if peer != rank})
    for number, edge in enumerate(assembly.edges):
        source, target = assembly.workers[edge.source], assembly.workers[edge.target]
        if source == target or rank not in (source, target):
            continue
        peer = target if rank == source else source
        for cargo in Cargo:
            way = Way(edge, number, cargo, peer, device, crossings[edge], Meter())
            lane = 2 * number + cargo
            if (rank == source) == (cargo is Cargo.ACTIVATION):
                sender = SendLane(group, peer, lane, deadline=timeout, throttle=ways.links.get(peer), meter=way.meter)
                ways.outgoing.append((way, sender))
            else:
                opening = partial(ReceiveLane, group, peer, lane, most=MOST, deadline=timeout, meter=way.meter)
                ways.incoming.append((way, opening))
    return ways
