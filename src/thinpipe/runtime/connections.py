"""Everything that joins one rank of a pipeline to the others, opened together and shut together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from thinpipe.links import Throttle
from thinpipe.runtime.agreement import meet, part
from thinpipe.runtime.assembly import Assembly
from thinpipe.runtime.control import Control
from thinpipe.runtime.crossing import Crossing, specs_of
from thinpipe.runtime.mesh import Mesh
from thinpipe.runtime.parcel import Edge
from thinpipe.runtime.post import Post
from thinpipe.runtime.replicas import OnlyChild, Siblings, Twins
from thinpipe.runtime.talk import Talk
from thinpipe.runtime.ties import Ties
from thinpipe.runtime.tracing import RankTrace
from thinpipe.runtime.ways import Ways, open_ways
from thinpipe.runtime.whereabouts import Whereabouts

_JOIN = 2.0
"""Seconds that threads may need to end; they do so at once, unless one of them packs something large."""


@dataclass(frozen=True)
class Connections:
    """What a rank has of the others.

    Args:
        control: that they live, and what went wrong.
        talk: what they say of a step.
        ways: where its lanes lead.
        post: brings parcels along them.
        ties: weights that it shares with other stages.
        siblings: the same stages in other replicas.
        trace: what it did and when.
        groups: gloo's connections, which all of these use.
    """

    control: Control
    talk: Talk
    ways: Ways
    post: Post
    ties: Ties
    siblings: Siblings
    trace: RankTrace
    groups: list[dist.ProcessGroup]

    def shut(self) -> None:
        """Ends a pipeline that was closed, that nobody has any more, or whose process ends."""
        self.control.close()
        self.post.close()
        self.ties.close()
        # Gloo lets nobody stop waiting; only a connection that breaks ends the lanes' threads, and a process that ends
        # before them is aborted.
        for group in self.groups:
            part(group)
        until = time.monotonic() + _JOIN
        self.control.join(until)
        self.post.join(until)


def connect(
    group: dist.ProcessGroup,
    words: dist.ProcessGroup,
    mesh: Mesh,
    assembly: Assembly,
    crossings: Mapping[Edge, Crossing],
    *,
    device: torch.device,
    where: Whereabouts,
    start_timeout: float,
    timeout: float,
    patience: float,
    throttle: Callable[[], Throttle] | None,
    trace: str | Path | None,
) -> Connections:
    """Joins a rank to the others; see ``Pipeline`` for what the arguments are.

    Args:
        group: the user's group, by which ranks meet.
        words: a gloo group of all ranks, for their words to each other.
        mesh: the rank's place.
        assembly: its part of the model.
        crossings: the codecs of all edges.
        device: of its stages.
        where: what it is at.
        start_timeout: seconds to wait for all ranks.
        timeout: seconds that a rank may be silent.
        patience: seconds that a rank may leave others waiting.
        throttle: makes an emulated link.
        trace: where a trace is written.

    Raises:
        StallError: not all ranks came.
    """
    data, *sums = _meet(group, words, mesh, timeout=start_timeout)
    recorded = RankTrace(mesh.rank, trace, words)
    control = Control(words, where, timeout=timeout, patience=patience)
    ways = open_ways(data, assembly, crossings, device, timeout=patience, throttle=throttle)
    specs = frozenset(spec for pair in specs_of(crossings).values() for spec in pair if spec is not None)
    failed = control.broken
    post = Post(ways.outgoing, ways.incoming, specs=specs, where=where, failed=failed, tracer=recorded.tracer)
    lanes = 2 * len(assembly.edges)
    ties = Ties(assembly.ties, data, first_lane=lanes, timeout=patience, links=ways.links, where=where)
    siblings: Siblings = OnlyChild()
    if sums:
        siblings = Twins(assembly.own, sums[0], mesh.twins, where=where, failed=failed)
    for each in (post, ties, siblings):
        control.when_failed(each.close)
    talk = Talk(control, mesh, assembly.workers[0], assembly.workers[-1])
    return Connections(control, talk, ways, post, ties, siblings, recorded, [*sums, data, words])


def _meet(
    group: dist.ProcessGroup, words: dist.ProcessGroup, mesh: Mesh, *, timeout: float
) -> Sequence[dist.ProcessGroup]:
    """Makes a group for data and, with replicas, one for sums."""
    made: list[dist.ProcessGroup] = []
    try:
        made.append(meet(group, "data", timeout=timeout))
        if mesh.replicas > 1:
            made.append(meet(group, "sums", timeout=timeout, ranks=mesh.twins))
    except BaseException:
        for each in (*made, words):
            part(each)
        raise
    return made
