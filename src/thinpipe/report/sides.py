"""The names of the two sides that a step's cost knows, which depend on the way a recipe is trained."""

from __future__ import annotations

from dataclasses import dataclass

from thinpipe.train.way import Way


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Who is meant by the numbers of a ``StepCost``.

    Args:
        first: whose numbers have no ``server_`` in their names.
        second: whose have; None where there is nobody.
        there: the way of the bytes that were sent.
        back: the way of those that were received.
        timed: whether the cost of a step has its computation and its peaks. If not, its computation is the time of the
            whole step.
    """

    first: str
    second: str | None
    there: str
    back: str
    timed: bool


_SIDES = {
    Way.ONE_DEVICE: Sides(first="this process", second=None, there="sent", back="received", timed=False),
    Way.IN_PROCESS: Sides(
        first="all stages", second=None, there="to later stages", back="to earlier stages", timed=False
    ),
    Way.RANKS: Sides(first="rank 0", second="other ranks", there="to higher ranks", back="to lower ranks", timed=True),
    Way.DATA_PARALLEL: Sides(
        first="rank 0", second=None, there="sent by rank 0", back="received by rank 0", timed=False
    ),
    Way.CONNECTED: Sides(
        first="client", second="server", there="client to server", back="server to client", timed=True
    ),
}

ANY = Sides(first="first side", second="second side", there="there", back="back", timed=True)
"""What they are called where runs of several ways stand beside each other."""


def sides_of(way: Way) -> Sides:
    """Names the sides of a way of training."""
    return _SIDES[way]
