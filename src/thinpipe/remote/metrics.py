"""How a server is doing: for Prometheus over HTTP, on this machine alone, and in a line for a terminal.

::

    # HELP thinpipe_session_step The last step that is committed.
    # TYPE thinpipe_session_step gauge
    thinpipe_session_step{client="ada",session="3f2a9c01",offer="resnet50"} 120.0
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from thinpipe.extras import need
from thinpipe.remote.cost import size_text

State = Literal["training", "connected", "away"]
STATES: tuple[State, ...] = ("training", "connected", "away")
"""Of a session: in the middle of a step, connected and between steps, or not connected."""

Event = Literal["refused", "broken", "steps", "replays"]

_HOST = "127.0.0.1"
_LABELS = ["client", "session", "offer"]
_LONGEST = 64
"""Characters of a label; a client chooses its name."""
_SHOWN = 4
"""Sessions in one line."""


@dataclass(frozen=True)
class SessionStatus:
    """One session, as its server sees it.

    Args:
        name: what the client calls itself, or ``anonymous``.
        session: the first 8 characters of the session's own name.
        offer: the model that it trains.
        state: ``training``, ``connected`` or ``away``.
        step: the last step that is committed.
        rows: examples that it has trained on.
        sent: bytes that the server has sent.
        received: bytes that the server has received.
        computed: seconds that the server has computed.
        waited: seconds that the server has waited for the client in the middle of steps.
        seconds_since_heard: since anything came from the client.
    """

    name: str
    session: str
    offer: str
    state: State
    step: int
    rows: int
    sent: int
    received: int
    computed: float
    waited: float
    seconds_since_heard: float


@dataclass
class Counters:
    """What happened to a server since it was started; any thread may count.

    Args:
        refused: sessions that were refused.
        broken: connections that broke.
        steps: steps that were committed.
        replays: steps that were taken again, after a connection broke or a half was restarted.
    """

    refused: int = 0
    broken: int = 0
    steps: int = 0
    replays: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def count(self, name: Event) -> None:
        """Adds one."""
        with self._lock:
            if name not in (known := self._read()):
                raise ValueError(f"no counter is called {name!r}; there are {', '.join(known)}")
            setattr(self, name, known[name] + 1)

    def read(self) -> dict[str, int]:
        """Reads all at one moment."""
        with self._lock:
            return self._read()

    def _read(self) -> dict[str, int]:
        return {"refused": self.refused, "broken": self.broken, "steps": self.steps, "replays": self.replays}


class MetricsServer:
    """Serves metrics until it is closed; at the end of a ``with``, too.

    Args:
        port: where; 0 for a free one.
        registry: what is served.
    """

    def __init__(self, port: int, registry: Any) -> None:
        try:
            self._server, self._thread = _prometheus().start_http_server(port, addr=_HOST, registry=registry)
        except OSError as error:
            raise OSError(
                error.errno, f"metrics cannot be served on {_HOST}:{port} ({error.strerror}); try another port, or 0"
            ) from error

    @property
    def port(self) -> int:
        """Where it serves, also if 0 was asked for."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Frees the port, and ends the thread; again, it does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve_metrics(port: int, statuses: Callable[[], Sequence[SessionStatus]], counters: Counters) -> MetricsServer:
    """Serves the metrics of a server on ``http://127.0.0.1:PORT/metrics``.

    Nobody from another machine can read them: names of clients are among them, and there is no password.

    Args:
        port: where; 0 for a free one, which ``port`` of the result tells.
        statuses: asked for the sessions at every request, by a thread of its own.
        counters: of the same server.

    Raises:
        ImportError: prometheus_client is not installed.
        OSError: the port is not free.
    """
    registry = _prometheus().CollectorRegistry()
    registry.register(_Collector(statuses, counters))
    return MetricsServer(port, registry)


def status_line(statuses: Sequence[SessionStatus]) -> str:
    """Says in one line how the sessions are doing; those that train come first.

    ::

        3 sessions, 1 training, 1 connected, 1 away | ada resnet50 training step 120, 3.2 MB out, 1.1 MB in | ...
    """
    if not statuses:
        return "no sessions"
    states = Counter(status.state for status in statuses)
    parts = [", ".join([_number(len(statuses)), *(f"{states[state]} {state}" for state in STATES if states[state])])]
    first = sorted(statuses, key=lambda status: STATES.index(status.state))
    for status in first[:_SHOWN]:
        away = f" for {status.seconds_since_heard:.0f} s" if status.state == "away" else ""
        parts.append(
            f"{_printable(status.name)} {_printable(status.offer)} {status.state}{away} step {status.step}, "
            f"{size_text(status.sent)} out, {size_text(status.received)} in"
        )
    if len(first) > _SHOWN:
        parts.append(f"{len(first) - _SHOWN} more")
    return " | ".join(parts)


class _Collector:
    """Asks for everything anew at every request; what a session's end leaves out is left out here."""

    def __init__(self, statuses: Callable[[], Sequence[SessionStatus]], counters: Counters) -> None:
        self._statuses, self._counters = statuses, counters

    def collect(self) -> Iterator[Any]:
        """Gives all families of metrics."""
        # By labels: Prometheus takes nothing at all from a server that says one thing twice.
        found = {_labels(status): status for status in self._statuses()}
        yield from self._of_server(len(found))
        yield from _of_sessions(found)

    def _of_server(self, sessions: int) -> Iterator[Any]:
        core, counts = _prometheus().core, self._counters.read()
        yield core.GaugeMetricFamily("thinpipe_sessions", "Sessions now, connected or away.", value=sessions)
        for name, text, count in (
            ("thinpipe_sessions_refused", "Sessions that were refused.", counts["refused"]),
            ("thinpipe_connections_broken", "Connections that broke.", counts["broken"]),
            ("thinpipe_steps", "Steps that were committed.", counts["steps"]),
            ("thinpipe_replays", "Steps that were taken again.", counts["replays"]),
        ):
            yield core.CounterMetricFamily(name, text, value=count)


def _of_sessions(found: dict[tuple[str, ...], SessionStatus]) -> Iterator[Any]:
    core = _prometheus().core
    gauge, counter = core.GaugeMetricFamily, core.CounterMetricFamily
    for kind, name, text, what in (
        (gauge, "step", "The last step that is committed.", "step"),
        (counter, "rows", "Examples that were trained on.", "rows"),
        (counter, "sent_bytes", "Bytes that the server has sent.", "sent"),
        (counter, "received_bytes", "Bytes that the server has received.", "received"),
        (counter, "computed_seconds", "Seconds that the server has computed.", "computed"),
        (counter, "waited_seconds", "Seconds that the server has waited for the client.", "waited"),
        (gauge, "silent_seconds", "Seconds since anything came from the client.", "seconds_since_heard"),
    ):
        family = kind(f"thinpipe_session_{name}", text, labels=_LABELS)
        for labels, status in found.items():
            family.add_metric(labels, getattr(status, what))
        yield family
    family = gauge("thinpipe_session_state", "1 for the state that the session is in.", labels=[*_LABELS, "state"])
    for labels, status in found.items():
        for state in STATES:
            family.add_metric([*labels, state], float(state == status.state))
    yield family


def _labels(status: SessionStatus) -> tuple[str, ...]:
    # Half a surrogate, which JSON can say, has no bytes in UTF-8; one such name would cost all metrics.
    texts = (status.name, status.session, status.offer)
    return tuple(text[:_LONGEST].encode("utf-8", "replace").decode() for text in texts)


def _printable(text: str) -> str:
    """Keeps a client's name from moving the terminal's cursor."""
    return "".join(each if each.isprintable() else "?" for each in text[:_LONGEST])


def _number(sessions: int) -> str:
    return f"{sessions} session{'s' * (sessions != 1)}"


def _prometheus() -> Any:
    need("metrics", "prometheus_client")
    import prometheus_client.core

    return prometheus_client
