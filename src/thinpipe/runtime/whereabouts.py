"""What a rank is at and whom it waits for: told to all others, so that an error on any rank names the one to blame."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from thinpipe.runtime.parcel import Address, Cargo
from thinpipe.schedule import Action


class Doing(NamedTuple):
    """An action of a step; written out only if somebody reads it."""

    action: Action
    step: int

    def __str__(self) -> str:
        return f"{self.action} of step {self.step}"


class Whereabouts:
    """What one rank is at. Its compute thread writes it, any thread reads it.

    Args:
        workers: the rank of each stage.
    """

    def __init__(self, workers: Sequence[int]) -> None:
        self.moves = 0
        self._workers = workers
        self._doing: object = "its start"
        self._awaited: Address | tuple[str, int] | None = None
        self._since = 0.0

    def at(self, doing: object) -> None:
        """Notes what the rank begins: a text, or anything that has one, which is asked for it only when needed."""
        self._doing = doing
        self.moves += 1

    def awaits(self, awaited: Address | tuple[str, int] | None) -> None:
        """Notes that the rank begins to wait, for a parcel or for a rank to tell something; None when it came."""
        self._since = time.monotonic()
        self._awaited = awaited
        self.moves += 1

    @contextmanager
    def waiting(self, what: str, rank: int) -> Iterator[None]:
        """Notes that the rank waits for another one while the body runs."""
        self.awaits((what, rank))
        try:
            yield
        finally:
            self.awaits(None)

    def wait(self) -> tuple[int, float] | None:
        """Tells which rank is waited for, and since when."""
        awaited = self._awaited  # before the time, which is written first: never an old time for a new wait
        since = self._since
        rank = None if awaited is None else self._source(awaited)
        return None if rank is None else (rank, since)

    def __str__(self) -> str:
        awaited = self._awaited
        if awaited is None:
            return str(self._doing)
        if isinstance(awaited, Address):
            stage = _sender(awaited)
            what = f"the {awaited.cargo.name.lower()} of stage {stage}, micro-batch {awaited.micro},"
        else:
            what = awaited[0]
        rank = self._source(awaited)
        return f"{self._doing}, waiting for {what} from {'the caller' if rank is None else f'rank {rank}'}"

    def _source(self, awaited: Address | tuple[str, int]) -> int | None:
        if not isinstance(awaited, Address):
            return awaited[1]
        stage = _sender(awaited)
        return self._workers[stage] if 0 <= stage < len(self._workers) else None


def _sender(address: Address) -> int:
    return address.edge.source if address.cargo is Cargo.ACTIVATION else address.edge.target
