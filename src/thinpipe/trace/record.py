"""The recorder that a rank carries: it notes what happens when, and costs less than a microsecond a span.

Any thread may record. A span is one append to a list, which Python does in one piece, so no lock is held where codecs,
links and computation meet.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Protocol, Self

from thinpipe.errors import TraceError
from thinpipe.trace.plain import to_json
from thinpipe.trace.span import TRACKS, Detail, Span, unknown_track


class Open(Protocol):
    """A span that is being recorded."""

    def note(self, **details: Detail) -> None:
        """Adds what is known only now, such as the bytes that came out of an encoder."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class AnyTracer(Protocol):
    """What records, or seems to."""

    def span(self, track: str, name: str, **details: Detail) -> Open:
        """Records what happens inside a ``with``."""

    def add(self, track: str, name: str, start: float, end: float, **details: Detail) -> None:
        """Records what has happened, by the times of ``time.perf_counter``."""

    def lines(self) -> list[Span]:
        """Lists what has been recorded."""

    def take(self) -> list[Span]:
        """Lists what has been recorded, and forgets it."""

    def clear(self) -> None:
        """Forgets what has been recorded."""

    def to_json(self) -> dict[str, Any]:
        """Gives what has been recorded as plain data."""


class Tracer:
    """Records the spans of one rank, in the seconds of its own ``time.perf_counter``.

    A span is recorded when it is over, also when it ends in an exception, whose name it then has as ``failed``.

    Args:
        rank: whose spans.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._rows: list[tuple[str, str, float, float, dict[str, Detail]]] = []

    def span(self, track: str, name: str, **details: Detail) -> Open:
        """Records what happens inside a ``with``; ``note`` adds details that are known only then.

        Args:
            track: compute, encode, wire or decode. Time on the wire is that of moving bytes: waiting for a message
                that nobody has sent yet belongs to no track.
            name: what, as ``F1.3``.
            details: plain values, such as ``step=7, bytes=1024, peer=1, way="in"``.
        """
        if track not in TRACKS:
            raise TraceError(unknown_track(track))
        return _Open(self, track, name, details)

    def add(self, track: str, name: str, start: float, end: float, **details: Detail) -> None:
        """Records what has happened, by the times of ``time.perf_counter``."""
        if track not in TRACKS:
            raise TraceError(unknown_track(track))
        self._rows.append((track, name, start, end, details))

    def lines(self) -> list[Span]:
        """Lists what has been recorded, in the order in which it was over.

        Raises:
            TraceError: a span ends before it begins, or has a detail that is no plain value.
        """
        return [Span(self.rank, *row) for row in self._rows[:]]

    def take(self) -> list[Span]:
        """Lists what has been recorded and forgets it; what other threads record meanwhile is in the next take."""
        rows = self._rows[:]
        del self._rows[: len(rows)]
        return [Span(self.rank, *row) for row in rows]

    def clear(self) -> None:
        """Forgets what has been recorded."""
        self._rows.clear()

    def to_json(self) -> dict[str, Any]:
        """Gives what has been recorded as plain data, for the way to rank 0, where ``from_json`` reads it."""
        return to_json(self.rank, self.lines())


class _Open:
    __slots__ = ("_details", "_name", "_start", "_tracer", "_track")

    def __init__(self, tracer: Tracer, track: str, name: str, details: dict[str, Detail]) -> None:
        self._tracer, self._track, self._name, self._details = tracer, track, name, details

    def note(self, **details: Detail) -> None:
        self._details.update(details)

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        end = time.perf_counter()
        if kind is not None:
            self._details["failed"] = kind.__name__
        self._tracer._rows.append((self._track, self._name, self._start, end, self._details))


class NoTrace:
    """Records nothing, for next to nothing, so that who is traced need not ask whether it is."""

    __slots__ = ()

    def span(self, track: str, name: str, **details: Detail) -> Open:
        """Does nothing."""
        return self

    def add(self, track: str, name: str, start: float, end: float, **details: Detail) -> None:
        """Does nothing."""

    def note(self, **details: Detail) -> None:
        """Does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return None

    def lines(self) -> list[Span]:
        """Has nothing."""
        return []

    take = lines

    def clear(self) -> None:
        """Does nothing."""

    def to_json(self) -> dict[str, Any]:
        """Has nothing."""
        return to_json(0, [])


NO_TRACE = NoTrace()
"""The recorder of those who are not traced."""
