"""Answers a name that nothing has with the nearest one that something has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def instead_of(wrong: str, names: Iterable[str]) -> str:
    """Says what somebody may have meant: the nearest of some names, or all of them where none is near."""
    known = list(names)
    near = difflib.get_close_matches(wrong, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
