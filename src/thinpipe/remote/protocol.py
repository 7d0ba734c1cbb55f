r"""What a client and a server say to each other. Data travels on lanes beside these words; see ``wires``.

::

    client                                                server
      │ hello: terms, session, the steps it can go back to  │
      │ ──────────────────────────────────────────────────► │  refused, with both values, if they disagree
      │      welcome: shapes, the step where both go on     │
      │ ◄────────────────────────────────────────────────── │
      │                                                     │
      │ begin: step k+1, rows                               │        committed: k on both
      │ ──────────────────────────────────────────────────► │
      │ ◄═════════════ activations, gradients ════════════► │
      │                                       ready: k+1    │  prepared: its gradients wait
      │ ◄────────────────────────────────────────────────── │
      │ the client's optimizer moves: k+1 is decided here   │
      │ commit: k+1                                         │
      │ ──────────────────────────────────────────────────► │  its optimizer moves

A connection that breaks before the client's decision leaves both at ``k``: each takes its attempt back, and the step
is computed again. One that breaks after it leaves the server prepared, and the next ``hello`` says that the client is
at ``k+1``: the server commits then. So a step happens once, or not at all, on both. A half that died is where it last
saved, and the other goes back to the newest step that both have and can read; the client feeds the same batches again.

Either side may say a ``notice`` at any time: a sentence for people, which the other one logs. A server that cannot save
says ``refused`` with the kind ``disk`` and hangs up; its client dials again until there is room.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypeVar

from thinpipe.errors import PacketError
from thinpipe.remote.terms import Terms

PROTOCOL = 2

HELLO, WELCOME, REFUSED = "hello", "welcome", "refused"
BEGIN, READY, COMMIT, FAILED = "begin", "ready", "commit", "failed"
SAVE, SAVED, LEAVE, LEFT, SPANS, CLOSING = "save", "saved", "leave", "left", "spans", "closing"
NOTICE = "notice"

SESSION = re.compile(r"[0-9a-f]{32}")
MOST_STEPS = 1000
MOST_ROWS = 1 << 31
MOST_SAID = 1000
"""Characters of a notice."""
LEAST_BANDWIDTH = 10_000.0
"""Bits a second: what is on an emulated link stays in the server's memory until it has passed."""

T = TypeVar("T")


@dataclass(frozen=True)
class Commit:
    """How a step is made part of the past.

    Args:
        step: which.
        lr: see ``Half.commit``.
        scale: see ``Half.commit``.
    """

    step: int
    lr: float | None
    scale: float

    @classmethod
    def from_json(cls, value: Any) -> Commit:
        """Reads it off a wire.

        Raises:
            PacketError: it makes no sense.
        """
        entries = _entries(cls, value)
        numbers = [entries["scale"], *([] if entries["lr"] is None else [entries["lr"]])]
        if not _is_step(entries["step"]) or not all(_is_finite(x) for x in numbers):
            raise PacketError(f"a commit that makes no sense: {value!r:.200}")
        return cls(**entries)


@dataclass(frozen=True)
class Begin:
    """What the server is to compute next; see ``Task``.

    Args:
        number: of the task.
        step: of the training.
        rows: of each micro-batch.
        train: whether to go backward.
        norm: whether the client wants to know the norm of the gradients.
    """

    number: int
    step: int
    rows: list[int]
    train: bool
    norm: bool

    @classmethod
    def from_json(cls, value: Any, *, chunks: int) -> Begin:
        """Reads it off a wire.

        Raises:
            PacketError: it makes no sense.
        """
        entries = _entries(cls, value)
        rows = entries["rows"]
        fine = (
            isinstance(rows, list) and 0 < len(rows) <= chunks and all(_is_step(n) and 0 < n < MOST_ROWS for n in rows)
        )
        flags = type(entries["train"]) is bool and type(entries["norm"]) is bool
        if not fine or not flags or not _is_step(entries["number"]) or not _is_step(entries["step"]):
            raise PacketError(f"a step that makes no sense: {value!r:.200}")
        return cls(**entries)


@dataclass(frozen=True)
class Hello:
    """What a client says first.

    Args:
        protocol: the version of these words.
        version: of thinpipe.
        offer: what it wants to train.
        session: its secret name for the training, by which it comes back to it.
        known: whether a server has welcomed that session before.
        terms: how to train.
        inputs: one row of what it will send; None if it does not know yet.
        at: the step that it is at, in memory; None after a restart.
        steps: the steps that it has saved, and can go back to.
        commit: how it committed the step that it is at, should the server not have heard.
        bandwidth: bits a second of an emulated link; None for none.
        trace: whether the server shall record what it does.
    """

    protocol: int
    version: str
    offer: str
    session: str
    known: bool
    terms: Terms
    inputs: list[Any] | None
    at: int | None
    steps: list[int]
    commit: Commit | None
    bandwidth: float | None
    trace: bool

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Reads it off a wire.

        Raises:
            PacketError: it makes no sense.
        """
        if isinstance(value, dict) and value.get("protocol") != PROTOCOL:
            raise PacketError(
                f"the protocol here is {PROTOCOL}, that of the other end {value.get('protocol')!r:.50}; install one "
                "version of thinpipe on both sides"
            )
        entries = _entries(cls, value)
        if not all(isinstance(entries[name], str) for name in ("version", "offer", "session")):
            raise PacketError(f"a hello that makes no sense: {value!r:.300}")
        if not SESSION.fullmatch(entries["session"]):
            raise PacketError("a session's name is 32 characters of 0-9 and a-f")
        at, steps, bandwidth = entries["at"], entries["steps"], entries["bandwidth"]
        fine = isinstance(steps, list) and len(steps) <= MOST_STEPS and all(map(_is_step, steps))
        fine = fine and (at is None or _is_step(at)) and type(entries["known"]) is bool
        if bandwidth is not None and not (_is_finite(bandwidth) and bandwidth >= LEAST_BANDWIDTH):
            raise PacketError(f"a bandwidth is at least {LEAST_BANDWIDTH:g} bits a second, got {bandwidth!r:.50}")
        if not fine or type(entries["trace"]) is not bool or not isinstance(entries["inputs"], list | None):
            raise PacketError(f"a hello that makes no sense: {value!r:.300}")
        entries["terms"] = Terms.from_json(entries["terms"])
        entries["commit"] = None if entries["commit"] is None else Commit.from_json(entries["commit"])
        return cls(**entries)


@dataclass(frozen=True)
class Welcome:
    """What a server answers.

    Args:
        version: of thinpipe.
        inputs: one row of what it expects; None if it does not know.
        outputs: one row of what it will send back; None if it does not know.
        step: where both go on.
        steps: the steps that it has saved.
    """

    version: str
    inputs: list[Any] | None
    outputs: list[Any] | None
    step: int
    steps: list[int]

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Reads it off a wire.

        Raises:
            PacketError: it makes no sense.
        """
        entries = _entries(cls, value)
        fine = isinstance(entries["steps"], list) and all(map(_is_step, entries["steps"]))
        shapes = all(isinstance(entries[name], list | None) for name in ("inputs", "outputs"))
        if not fine or not shapes or not _is_step(entries["step"]) or not isinstance(entries["version"], str):
            raise PacketError(f"a welcome that makes no sense: {value!r:.300}")
        return cls(**entries)


def step_of(value: Any) -> int:
    """Reads the number of a step off a wire.

    Raises:
        PacketError: it is none.
    """
    if not _is_step(value):
        raise PacketError(f"{value!r:.50} is no step")
    return int(value)


def notice_of(value: Any) -> str:
    """Reads a sentence for people off a wire, in one line.

    Raises:
        PacketError: it is none.
    """
    if not isinstance(value, str) or len(value) > MOST_SAID:
        raise PacketError(f"a notice is a text of at most {MOST_SAID} characters, got {value!r:.50}")
    return "".join(each if each.isprintable() else " " for each in value)


def _entries(kind: type[T], value: Any) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(value, Mapping) or set(value) != names:
        raise PacketError(f"a {kind.__name__.lower()} has {', '.join(sorted(names))}; got {value!r:.300}")
    return dict(value)


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _is_finite(value: Any) -> bool:
    # An integer may be too large to be asked whether it is infinite.
    return (type(value) is int and abs(value) < 2**62) or (type(value) is float and math.isfinite(value))
