"""A chart of runs as points: how good each is against how much it sends, with names that do not cover each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from thinpipe.report.drawing import HALF, across, at_widths, breadth, marker, shortened, svg, text, upwards
from thinpipe.report.markup import Markup, element
from thinpipe.report.scale import Linear, Log
from thinpipe.report.units import bytes_text

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 18, 46
_LINE = 15
"""The height of a name."""


@dataclass(frozen=True)
class Spot:
    """A run.

    Args:
        label: of the run.
        number: its place, which decides about colour and marker.
        bytes: of a batch, both ways; None where nothing was sent, and the run is a line through the chart.
        value: how good it is.
        told: the same in words.
    """

    label: str
    number: int
    bytes: float | None
    value: float
    told: str


@dataclass(frozen=True)
class _Box:
    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def point_chart(
    name: str, title: str, spots: Sequence[Spot], say: Callable[[float], str], *, share: bool
) -> Markup | None:
    """Draws runs for all widths; None where none of them sent anything.

    Args:
        name: by which it differs from all others of the page.
        title: what it is.
        spots: the runs.
        say: writes a value beside the axis.
        share: whether values are parts of 1, and the axis is about their differences; others begin at 0.
    """
    if not any(spot.bytes for spot in spots):
        return None
    return at_widths(HALF, lambda size, width: _drawn(name, title, spots, say, size, width, share=share))


def _drawn(
    name: str, title: str, spots: Sequence[Spot], say: Callable[[float], str], size: str, width: int, *, share: bool
) -> Markup:
    height = 236 if width < 400 else 280
    sent = [(spot, spot.bytes) for spot in spots if spot.bytes]
    x = Log.around([size for _, size in sent], _LEFT, width - _RIGHT)
    y = Linear.around([spot.value for spot in spots], height - _BOTTOM, _TOP, zero=not share, share=share)
    # Points first: a name may cover a line, but never a point.
    places = [(spot, x(size), y(spot.value)) for spot, size in sent]
    taken = [_Box(left - 7, left + 7, top - 7, top + 7) for _, left, top in places]
    room = _Box(_LEFT, width - 4, 4, height - _BOTTOM)
    still = [(spot, y(spot.value)) for spot in spots if not spot.bytes]
    parts = [
        *upwards(y, left=_LEFT, right=width - _RIGHT, say=say, most=5),
        *across(
            x,
            bottom=height - _BOTTOM,
            say=lambda value: bytes_text(value).replace(".0 ", " "),
            most=4 if width < 400 else 6,
        ),
        text("bytes of a batch, both ways", width - _RIGHT, height - 8, anchor="end"),
        *(part for spot, top in still for part in _still(spot, top, room, taken)),
        *(
            element(
                "g",
                *_name(spot, left, top, room, taken),
                marker(left, top, spot.number, tip=spot.told),
                data_run=str(spot.number),
            )
            for spot, left, top in places
        ),
    ]
    said = "; ".join(spot.told for spot in spots)
    return svg(name, size, *parts, width=width, height=height, title=title, said=f"{said}.")


def _still(spot: Spot, top: float, room: _Box, taken: list[_Box]) -> Iterator[Markup]:
    """Draws a run that sends nothing as a line through the chart."""
    yield element("path", element("title", spot.told), d=f"M{room.left:.1f},{top:.1f}H{room.right:.1f}", class_="limit")
    yield from _name(spot, room.left - 4, top - 10, room, taken)


def _name(spot: Spot, x: float, y: float, room: _Box, taken: list[_Box]) -> Iterator[Markup]:
    """Writes a name beside its point, or as near as there is nothing else, with a line to the point."""
    words = shortened(spot.label, (room.right - room.left) * 0.6)
    width = breadth(words)
    starts = [start for start in (x + 10, x - 10 - width, x - width / 2) if room.left <= start <= room.right - width]
    starts = starts or [max(room.left, room.right - width)]
    places = [
        _Box(start, start + width, y + away - _LINE / 2, y + away + _LINE / 2)
        for away, start in product(sorted(range(-240, 241, 4), key=abs), starts)
    ]
    inside = [box for box in places if room.top <= box.top and box.bottom <= room.bottom]
    free = [box for box in inside if not any(box.meets(other) for other in taken)]
    # So many runs that there is no room at all: the marker's own words have its name.
    if not free:
        return
    box = free[0]
    taken.append(box)
    if abs((box.top + box.bottom) / 2 - y) > _LINE:
        end = box.left if box.left > x else box.right if box.right < x else (box.left + box.right) / 2
        yield element("path", d=f"M{x:.1f},{y:.1f}L{end:.1f},{(box.top + box.bottom) / 2:.1f}", class_="axis")
    yield text(words, box.left, box.bottom - 3.5, kind="ink halo")
