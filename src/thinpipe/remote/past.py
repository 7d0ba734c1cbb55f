"""The steps that a half can go back to, in a folder or in memory, and which of them it may forget.

The two halves save at the same steps, but one of them may die between its save and the other's, and a file may be
damaged. So each keeps the last two steps that it knows both to have, and everything after them::

    client   50  100  150            tells "saved 150"
    server   50  100      (killed)   has told "saved 100": both keep 50 and 100, and go on from 100,
                                     or from 50 if a file of 100 is damaged on either side
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from thinpipe.errors import CheckpointError, DamagedError
from thinpipe.remote.half import Half
from thinpipe.remote.saved import Snapshot

KEPT = 2
"""Steps that both halves have and that are kept, so that one of them may be damaged."""


class Shelf(Protocol):
    """Where snapshots are; ``Store`` is a folder, ``Memory`` is none."""

    def steps(self) -> list[int]:
        """Lists the steps that are there, in ascending order."""

    def save(self, snapshot: Snapshot) -> None:
        """Keeps a snapshot."""

    def load(self, step: int) -> Snapshot:
        """Finds a snapshot."""

    def set_aside(self, step: int) -> None:
        """Takes a damaged step out of the list."""

    def forget_before(self, step: int) -> None:
        """Removes all steps before one."""

    def forget_after(self, step: int) -> None:
        """Removes all steps after one."""


class Memory:
    """Snapshots that end with the process: a half without a folder survives the other's death, not its own."""

    def __init__(self) -> None:
        self._found: dict[int, Snapshot] = {}

    def steps(self) -> list[int]:
        """Lists the steps that are there, in ascending order."""
        return sorted(self._found)

    def save(self, snapshot: Snapshot) -> None:
        """Keeps a snapshot, whose tensors must be copies."""
        self._found.setdefault(snapshot.step, snapshot)

    def load(self, step: int) -> Snapshot:
        """Finds a snapshot.

        Raises:
            CheckpointError: it is not there.
        """
        if step not in self._found:
            raise CheckpointError(f"step {step} was not kept; there are {self.steps()}")
        return self._found[step]

    def set_aside(self, step: int) -> None:
        """Takes a step out of the list."""
        self._found.pop(step, None)

    def forget_before(self, step: int) -> None:
        """Removes all steps before one."""
        self._found = {k: v for k, v in self._found.items() if k >= step}

    def forget_after(self, step: int) -> None:
        """Removes all steps after one."""
        self._found = {k: v for k, v in self._found.items() if k <= step}


class Past:
    """What one half has saved, and what it knows of the other's.

    Args:
        shelf: where this half's snapshots are.
        whose: which half it is, for people: ``this client``.

    Attributes:
        oldest: the oldest step that both halves may have to go back to, as far as this one knows.
    """

    def __init__(self, shelf: Shelf, whose: str) -> None:
        self._shelf, self._whose = shelf, whose
        self._theirs: set[int] = set()
        self._damaged: dict[int, str] = {}
        self._lost: dict[int, str] = {}
        self.oldest = 0

    def steps(self) -> list[int]:
        """Lists the steps that this half has saved, without those that are known to be damaged."""
        return [step for step in self._shelf.steps() if step not in self._damaged]

    def save(self, half: Half) -> None:
        """Saves what is committed.

        Raises:
            DiskError: the disk does not take it now.
            CheckpointError: it cannot be saved at all.
        """
        self._shelf.save(half.snapshot(copy=isinstance(self._shelf, Memory)))
        self._settle()

    def load(self, among: Collection[int] | None = None) -> Snapshot:
        """Reads the newest step that is not damaged, and forgets all later ones: they will be computed again.

        Args:
            among: the steps that will do (default: any).

        Raises:
            DamagedError: all of them are damaged, and left where they are.
            CheckpointError: there is none.
        """
        damage: dict[int, DamagedError] = {}
        for step in reversed(self.steps()):
            if among is not None and step not in among:
                continue
            try:
                snapshot = self._shelf.load(step)
            except DamagedError as error:
                damage[step], self._damaged[step] = error, error.reason
                continue
            self._go_back(step)
            return snapshot
        if not damage:
            raise CheckpointError(f"no step of {self._whose} is left")
        newest, said = damage[max(damage)], self._said({step: error.reason for step, error in damage.items()})
        raise DamagedError(f"{said}: {newest}", said) from newest

    def account(self, step: int) -> str | None:
        """Says, once, which steps were damaged; None if none was.

        Args:
            step: where both halves go on.
        """
        lost, self._lost = self._lost, {}
        if not lost:
            return None
        count = max(lost) - step
        return f"{self._said(lost)}; going on from step {step}, {count} step{'s are' if count != 1 else ' is'} repeated"

    def meet(self, steps: Iterable[int]) -> None:
        """Notes all steps that the other half has now; whatever was known before counts no more."""
        self._theirs = set(steps)
        self.oldest = min(self._theirs & set(self.steps()), default=self.oldest)

    def theirs(self, step: int) -> None:
        """Notes that the other half has saved a step; older ones than the last two that both have are forgotten."""
        self._theirs.add(step)
        self._settle()

    def _settle(self) -> None:
        both = sorted(self._theirs & set(self.steps()))
        if both:
            self.oldest = both[-KEPT:][0]
            self._shelf.forget_before(self.oldest)
            self._theirs = {each for each in self._theirs if each >= self.oldest}

    def _go_back(self, step: int) -> None:
        for each in [each for each in self._damaged if each > step]:
            self._lost[each] = self._damaged.pop(each)
            self._shelf.set_aside(each)
        self._shelf.forget_after(step)
        self._theirs = {each for each in self._theirs if each <= step}

    def _said(self, damage: Mapping[int, str]) -> str:
        return ", ".join(f"step {step} of {self._whose} is damaged ({damage[step]})" for step in sorted(damage))
