"""What all charts are made of: a drawing for each width of the reader's window, marks for series, axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from thinpipe.report.markup import Markup, element, joined
from thinpipe.report.scale import Scale

HALF = (("s", 330), ("m", 530))
"""Widths of a chart that has another one beside it: on a phone, and elsewhere."""

FULL = (("s", 330), ("m", 660), ("l", 1100))
"""Widths of a chart that has a row of its own: on a phone, a tablet, and elsewhere."""

COLOURS = 8
"""As many as the style sheet has for series; after them dashes and markers tell series apart."""

_DASHES = (None, "7 4", "2 4", "10 3 2 3", "14 5")
_SHAPES = (
    "M-4,0A4,4 0 1 0 4,0A4,4 0 1 0 -4,0Z",
    "M-3.6,-3.6H3.6V3.6H-3.6Z",
    "M0,-4.6L4.6,3.6H-4.6Z",
    "M0,-5L5,0L0,5L-5,0Z",
    "M0,4.6L4.6,-3.6H-4.6Z",
)
_LETTER = 7.4
"""The width of a letter of a chart's small print, in pixels, rather too large than too small."""


def at_widths(widths: Iterable[tuple[str, int]], draw: Callable[[str, int], Markup]) -> Markup:
    """Draws a chart once for each width; ``draw`` gets the name of the width and the pixels."""
    return joined(*(draw(name, pixels) for name, pixels in widths))


def svg(name: str, size: str, *parts: str | None, width: float, height: float, title: str, said: str) -> Markup:
    """Wraps a drawing.

    Args:
        name: by which it differs from all others of the page.
        size: the name of its width.
        parts: what is in it.
        width: in pixels.
        height: in pixels.
        title: what it is.
        said: what it shows, for those who hear it.
    """
    mark = f"{name}-{size}"
    return element(
        "svg",
        element("title", title, id=f"{mark}-title"),
        element("desc", said, id=f"{mark}-said"),
        *parts,
        class_=f"chart at-{size}",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_labelledby=f"{mark}-title",
        aria_describedby=f"{mark}-said",
    )


def text(words: str, x: float, y: float, *, kind: str = "soft", anchor: str | None = None) -> Markup:
    """Writes a line; ``kind`` is a class of the style sheet: soft, ink, small."""
    return element("text", words, x=x, y=y, class_=kind, text_anchor=anchor)


def shortened(words: str, pixels: float) -> str:
    """Cuts words to what fits into so many pixels."""
    most = max(4, int(pixels / _LETTER))
    return words if len(words) <= most else f"{words[: most - 1]}…"


def breadth(words: str) -> float:
    """Tells about how many pixels words need."""
    return _LETTER * len(words)


def colour(number: int) -> str:
    """Names the class of a series' colour."""
    return f"c{number % COLOURS}"


def line(points: Sequence[tuple[float, float]], number: int, *, thin: bool = False) -> Markup:
    """Draws the line of a series."""
    path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    kind = f"line {'thin ' if thin else ''}{colour(number)}"
    return element("path", d=path, class_=kind, stroke_dasharray=_DASHES[number % len(_DASHES)])


def marker(x: float, y: float, number: int, *, tip: str | None = None) -> Markup:
    """Draws the marker of a series at a place."""
    title = None if tip is None else element("title", tip)
    kind = f"mark {colour(number)}"
    return element(
        "path", title, d=_SHAPES[number % len(_SHAPES)], class_=kind, transform=f"translate({x:.1f},{y:.1f})"
    )


def swatch(number: int) -> Markup:
    """Draws a short piece of a series' line with its marker, for a legend."""
    return element("svg", line([(1, 7), (31, 7)], number), marker(16, 7, number), **_SWATCH)


_SWATCH: dict[str, str | float | bool | None] = {
    "class_": "swatch",
    "viewBox": "0 0 32 14",
    "width": 32,
    "height": 14,
    "aria_hidden": "true",
}


def across(scale: Scale, *, bottom: float, say: Callable[[float], str], most: int) -> Iterator[Markup]:
    """Draws the axis at the bottom: round values, and what they mean."""
    yield element("path", d=f"M{scale.start:.1f},{bottom:.1f}H{scale.end:.1f}", class_="axis")
    for tick in scale.ticks(most):
        x = scale(tick)
        yield element("path", d=f"M{x:.1f},{bottom:.1f}v4", class_="axis")
        yield text(say(tick), x, bottom + 17, anchor="middle")


def upwards(scale: Scale, *, left: float, right: float, say: Callable[[float], str], most: int) -> Iterator[Markup]:
    """Draws the axis at the left: lines at round values through the whole chart."""
    for tick in scale.ticks(most):
        y = scale(tick)
        yield element("path", d=f"M{left:.1f},{y:.1f}H{right:.1f}", class_="grid")
        yield text(say(tick), left - 7, y + 4, anchor="end")
