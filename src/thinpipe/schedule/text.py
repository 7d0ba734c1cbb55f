"""A schedule as text, a line for each worker::

0: F0.0 F0.1 B0.0 B0.1
1: F1.0 B1.0 F1.1 B1.1
"""

from __future__ import annotations

from collections.abc import Sequence

from thinpipe.schedule.action import Action, ActionList


def write(lists: Sequence[ActionList]) -> str:
    """Writes a schedule."""
    return "".join(f"{worker}: {' '.join(map(str, actions))}\n" for worker, actions in enumerate(lists))


def read(text: str) -> list[ActionList]:
    """Reads what ``write`` wrote; empty lines and what follows a # are left out.

    Raises:
        ValueError: a line is not of that form, or workers are out of order.
    """
    lists: list[ActionList] = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        worker, colon, actions = content.partition(":")
        if not colon or worker.strip() != str(len(lists)):
            raise ValueError(f"line {number} should begin with '{len(lists)}:', got {line!r}")
        try:
            lists.append([Action.parse(word) for word in actions.split()])
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return lists
