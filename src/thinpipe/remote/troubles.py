"""What a client makes of its troubles: how long to wait before it tries again, and when to stop."""

from __future__ import annotations

import re
import time
from typing import Any

from thinpipe.checkpoint import disk
from thinpipe.errors import (
    BusyError,
    DamagedError,
    DisagreementError,
    DiskError,
    RefusedError,
    ThinpipeError,
)

_SHORTEST, _LONGEST = 0.05, 2.0
_MOST = 20
"""How often one and the same step may fail with a server that is there: then it is not the network."""

_QUIET = 10.0
"""Seconds until the same trouble is reported again; then twice as many, and so on."""

BUSY, DISAGREEMENT, DISK, OTHER = "busy", "disagreement", "disk", "refused"
_PATH = re.compile(r"(?<![\w./:])/(?:[^\s/'\":;,]+/)+")


class Troubles:
    """The troubles of one call.

    Args:
        give_up: seconds without a step of progress after which there is no hope.
    """

    def __init__(self, give_up: float) -> None:
        self._give_up = give_up
        self._step: int | None = None
        self._since = 0.0
        self._tries = self._failures = 0
        self._lost_at: float | None = None
        self._due = 0.0
        self._reported: set[str] = set()

    def pause(self, step: int, error: Exception, *, welcomed: bool) -> float:
        """Tells how many seconds to wait before the next attempt.

        Args:
            step: how many steps are committed.
            error: what has happened.
            welcomed: whether the server was there, and had begun to work with this client.

        Raises:
            Exception: the error itself, if it has happened too often, or for too long.
        """
        now = time.monotonic()
        if isinstance(error, DiskError):
            # The server is there, and goes on as soon as there is room: that may take as long as it takes.
            self._step, self._since, self._failures = step, now, 0
            self._tries += 1
            return min(disk.SHORTEST * 2.0 ** min(self._tries - 1, 10), disk.LONGEST)
        if self._step is None or step > self._step:
            self._step, self._since, self._tries, self._failures = step, now, 0, 0
        self._tries += 1
        self._failures += welcomed
        if now - self._since > self._give_up:
            error.add_note(f"tried for {now - self._since:.0f} s; the limit is give_up={self._give_up:g}")
            raise error
        if self._failures >= _MOST:
            error.add_note(f"step {step + 1} has failed {self._failures} times")
            raise error
        return min(_SHORTEST * 2.0 ** min(self._tries - 1, 10), _LONGEST)

    def lost(self, error: Exception) -> str | None:
        """Makes the line that reports a failed attempt: each reason once, then a reminder after 10, 20, 40 s and so on.

        Args:
            error: what has happened.
        """
        now, reason = time.monotonic(), str(error) or "the connection was closed"
        if self._lost_at is None:
            self._lost_at, self._due, self._reported = now, now + _QUIET, {reason}
            return f"{reason}; trying again for up to {_duration(self._give_up)}"
        if reason in self._reported and now < self._due:
            return None
        self._reported.add(reason)
        while self._due <= now:
            self._due += self._due - self._lost_at
        return f"still trying, for {_duration(now - self._lost_at)}: {reason}"

    def connected(self) -> str | None:
        """Makes the line that reports a connection after failed attempts; None if none had failed."""
        if self._lost_at is None:
            return None
        since, self._lost_at = self._lost_at, None
        return f"connected again after {_duration(time.monotonic() - since)}"


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def refusal(peer: str, value: Any) -> ThinpipeError:
    """Makes the error that a server's refusal is."""
    kind, reason = (value.get("kind"), value.get("reason")) if isinstance(value, dict) else (OTHER, value)
    if kind == DISK:
        return DiskError(f"{peer} cannot save {reason!s:.4000}", f"{reason!s:.4000}")
    kinds: dict[Any, type[ThinpipeError]] = {BUSY: BusyError, DISAGREEMENT: DisagreementError}
    return kinds.get(kind, RefusedError)(f"{peer} refused: {reason!s:.4000}")


def kind_of(error: Exception) -> str:
    """Says what kind of refusal an error is, for the wire."""
    kinds = {BusyError: BUSY, DisagreementError: DISAGREEMENT, DiskError: DISK}
    return next((kind for each, kind in kinds.items() if isinstance(error, each)), OTHER)


def reason_for_others(error: Exception) -> str:
    """Says what an error is about without the folders of this machine, which are no matter of the other side's."""
    if isinstance(error, DamagedError | DiskError):
        return error.reason
    name = "" if isinstance(error, ThinpipeError) else f"{type(error).__name__}: "
    return _PATH.sub("", f"{name}{error}")
