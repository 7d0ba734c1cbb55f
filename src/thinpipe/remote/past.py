"""The steps that a half can go back to, in a folder or in memory, and which of them it may forget.

The two halves save at the same steps, but one of them may die between its save and the other's. So each keeps the
newest step that it knows both to have, and everything after it::

    client   50  100  150            tells "saved 150"
    server   50  100      (killed)   has told "saved 100": both keep 100, and go on from there
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from thinpipe.errors import CheckpointError
from thinpipe.remote.half import Half
from thinpipe.remote.saved import Snapshot


class Shelf(Protocol):
    """Where snapshots are; ``Store`` is a folder, ``Memory`` is none."""

    def steps(self) -> list[int]:
        """Lists the steps that are there, in ascending order."""

    def save(self, snapshot: Snapshot) -> None:
        """Keeps a snapshot."""

    def load(self, step: int) -> Snapshot:
        """Finds a snapshot."""

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
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._theirs: set[int] = set()
        self.common = 0

    def steps(self) -> list[int]:
        """Lists the steps that this half has saved."""
        return self._shelf.steps()

    def save(self, half: Half) -> None:
        """Saves what is committed.

        Raises:
            CheckpointError: it cannot be written.
        """
        self._shelf.save(half.snapshot(copy=isinstance(self._shelf, Memory)))
        self._settle()

    def load(self, step: int) -> Snapshot:
        """Reads a step, and forgets all later ones: they will be computed again."""
        snapshot = self._shelf.load(step)
        self._shelf.forget_after(step)
        self._theirs = {each for each in self._theirs if each <= step}
        return snapshot

    def theirs(self, steps: Iterable[int]) -> None:
        """Notes steps that the other half has saved."""
        self._theirs |= set(steps)
        self._settle()

    def _settle(self) -> None:
        both = self._theirs & set(self._shelf.steps())
        if both:
            self.common = max(both)
            self._shelf.forget_before(self.common)
            self._theirs = {each for each in self._theirs if each >= self.common}
