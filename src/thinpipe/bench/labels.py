"""Finds room for names beside the marks of a picture: no two of them overlap, and what has no room is left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

_LETTER, _HEIGHT, _GAP = 5.7, 11.0, 2.0
_NEAR, _FAR = (7.0,), (7.0, 14.0, 22.0, 32.0, 44.0, 58.0)
_DIRECTIONS = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1))
_DIAGONAL = 0.7


@dataclass(frozen=True)
class Box:
    """A rectangle, in pixels from the left and from the top."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Tells whether two have a pixel in common."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def holds(self, other: Box) -> bool:
        """Tells whether another one is within this one."""
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )


def width_of(text: str) -> float:
    """Guesses how wide a name is: fonts differ, and this is wide for all that are usual."""
    return _LETTER * len(text) + _GAP


class Room:
    """The room in a picture.

    Args:
        bounds: no name leaves them.
        taken: where nothing may be written.
    """

    def __init__(self, bounds: Box, taken: Iterable[Box]) -> None:
        self._bounds, self._taken = bounds, list(taken)

    def beside(self, text: str, x: float, y: float, *, far: bool) -> Box | None:
        """Takes the nearest free place to a point, for good.

        Args:
            text: what is written there.
            x: of the point.
            y: the same.
            far: whether it may be so far away that a line has to lead there.

        Returns:
            The place; None where there is none.
        """
        for away, (right, down) in product(_FAR if far else _NEAR, _DIRECTIONS):
            place = _at(width_of(text), x, y, away, right, down)
            if self._bounds.holds(place) and not any(map(place.meets, self._taken)):
                self._taken.append(place)
                return place
        return None


def _at(width: float, x: float, y: float, away: float, right: int, down: int) -> Box:
    """Puts a box in a direction from a point, its nearest side or corner so far away."""
    step = away * (_DIAGONAL if right and down else 1.0)
    left = x + right * step - width * {1: 0.0, 0: 0.5, -1: 1.0}[right]
    top = y + down * step - _HEIGHT * {1: 0.0, 0: 0.5, -1: 1.0}[down]
    return Box(left, top, left + width, top + _HEIGHT)
