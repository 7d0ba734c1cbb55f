"""Answers a name that nothing has with the nearest one that something has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def instead_of(wrong: str, names: Iterable[str]) -> str:
    """Says what somebody may have meant: the nearest of some names, or all of them where none is near."""
    known = list(names)
    near = nearest(wrong, known)
    return f"there are {', '.join(known)}" if near is None else f"did you mean {near}?"


def nearest(wrong: str, names: Iterable[str]) -> str | None:
    """Finds the nearest of some names; None if none is near."""
    return next(iter(difflib.get_close_matches(wrong[:100], list(names), n=1)), None)
