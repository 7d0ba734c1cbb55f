"""The GPipe schedule: every micro-batch forward, then every micro-batch backward.

Four micro-batches on three stages, time to the right; a stage waits for the one above it going forward and for the one
below it going backward::

    stage 0   F0 F1 F2 F3                    B3 R2 B2 R1 B1 R0 B0
    stage 1      F0 F1 F2 F3              B3 R2 B2 R1 B1 R0 B0
    stage 2         F0 F1 F2 F3   loss  B3 R2 B2 R1 B1 R0 B0

The loss belongs to the caller, between the halves, so the halves are two functions. A recomputation stands before the
backward that needs it and waits for nobody: a stage recomputes while its gradient is still on the way.
"""

from __future__ import annotations

from itertools import chain

from thinpipe.schedule.action import Action, ActionList, Kind


def gpipe_forward(n: int, m: int) -> list[ActionList]:
    """Lists what each of ``n`` stages does to take ``m`` micro-batches forward."""
    return [[Action(Kind.FORWARD, j, i) for i in range(m)] for j in range(n)]


def gpipe_backward(n: int, m: int, recomputed: frozenset[int] = frozenset()) -> list[ActionList]:
    """Lists what each of ``n`` stages does to take ``m`` micro-batches backward, the last one first.

    Args:
        n: the number of stages.
        m: the number of micro-batches.
        recomputed: micro-batches whose activations were not kept (default: none).
    """

    def actions(j: int) -> ActionList:
        order: ActionList = []
        for i in reversed(range(m)):
            if i in recomputed:
                order.append(Action(Kind.RECOMPUTE, j, i))
            order.append(Action(Kind.BACKWARD, j, i))
        return order

    return [actions(j) for j in range(n)]


def one_line(lists: list[ActionList]) -> ActionList:
    """Merges the stages' lists of one half into a single order in which no action waits for a later one."""

    def clock(action: Action) -> tuple[int, int, bool]:
        if action.kind is Kind.FORWARD:
            return (action.micro, action.stage, False)
        return (-action.micro, -action.stage, action.kind is Kind.BACKWARD)

    return sorted(chain.from_iterable(lists), key=clock)
