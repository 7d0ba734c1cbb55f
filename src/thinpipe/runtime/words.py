"""The words of ranks to each other: small JSON messages, and why a pipeline ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thinpipe.errors import DisagreementError, PacketError, PeerError, PeerLost, StallError, ThinpipeError

MOST = 1 << 16
"""Bytes of a message."""

_FIELDS = {"kind": str, "step": int, "begun": int, "at": str, "moves": int, "waits_for": int | None}
"""What every message has, beside its value."""

FAILURES: dict[str, type[ThinpipeError]] = {
    "error": PeerError,
    "lost": PeerLost,
    "stall": StallError,
    "apart": DisagreementError,
}


@dataclass(frozen=True)
class Cause:
    """Why a pipeline ended.

    Args:
        kind: ``error``, ``lost``, ``stall`` or ``apart``.
        rank: the one to blame.
        text: what happened to it.
    """

    kind: str
    rank: int
    text: str


def cause_in(value: Any) -> Cause:
    """Reads why a pipeline ended.

    Raises:
        PacketError: the value says nothing of the kind.
    """
    try:
        cause = Cause(str(value["kind"]), int(value["rank"]), str(value["text"]))
    except (KeyError, TypeError, ValueError) as error:
        raise PacketError(f"a control message that makes no sense: {value!r:.200}") from error
    if cause.kind not in FAILURES:
        raise PacketError(f"a control message with a failure of an unknown kind: {cause.kind!r:.50}")
    return cause


def written(message: dict[str, Any]) -> Tensor:
    """Writes a message."""
    return torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)


def read(received: Tensor) -> dict[str, Any]:
    """Reads a message.

    Raises:
        PacketError: it is none.
    """
    try:
        message = json.loads(bytes(received.numpy().data))
        right = all(isinstance(message[name], kind) for name, kind in _FIELDS.items()) and "value" in message
    except (ValueError, KeyError, TypeError) as error:
        raise PacketError(f"a control message that makes no sense: {error}") from error
    if not right:
        raise PacketError(f"a control message that makes no sense: {message!r:.200}")
    return message  # type: ignore[no-any-return]
