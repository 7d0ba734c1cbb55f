"""Numbers that are not finite: written as JSON, which has no word for them, and shown to readers plainly.

::

    {"loss": nan, "lr": 0.1}    ->    {"loss": null, "lr": 0.1, "not_finite": {"loss": "nan"}}    ->    the same again

A value that is finite is written as ``json`` writes it. In a list, what is not finite is ``null`` and stays so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

MARKER = "not_finite"
"""The key under which an object names its values that are not finite: ``nan``, ``inf`` or ``-inf``."""


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Writes plain values as JSON that every reader takes."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def loads(text: str | bytes) -> Any:
    """Reads what ``dumps`` wrote, and the ``NaN`` and ``Infinity`` of older versions.

    Raises:
        ValueError: it is not JSON, or its marker names no number.
    """
    marked = MARKER in text if isinstance(text, str) else MARKER.encode() in text
    return json.loads(text, object_hook=_restored if marked else None)


def plain(value: Any) -> Any:
    """Returns the same values with ``None`` for what is not finite, and a marker where an object had some."""
    if isinstance(value, Mapping):
        lost = {name: str(each) for name, each in value.items() if _is_lost(each)}
        return {name: plain(each) for name, each in value.items()} | ({MARKER: lost} if lost else {})
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if _is_lost(value) else value


def number_text(value: float | None, form: str) -> str:
    """Says a number in a form, or that it is not finite; nothing of what is not known."""
    return "" if value is None else format(value, form) if math.isfinite(value) else "not finite"


def _is_lost(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _restored(entries: dict[str, Any]) -> dict[str, Any]:
    lost = entries.get(MARKER)
    if not isinstance(lost, dict):
        return entries
    return {name: value for name, value in entries.items() if name != MARKER} | {
        str(name): float(word) for name, word in lost.items()
    }
