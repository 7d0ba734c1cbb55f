"""Small parts that the sections of a page share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from thinpipe.report.drawing import swatch
from thinpipe.report.entry import Entry
from thinpipe.report.markup import Markup, element


def section(name: str, title: str, about: str, *parts: str | None) -> Markup:
    """Writes a section with its heading and a line about it."""
    head = element("h2", title, id=f"{name}-head")
    return element(
        "section", head, element("p", about, class_="about"), *parts, id=name, aria_labelledby=f"{name}-head"
    )


def figure(title: str, about: str, drawing: Markup) -> Markup:
    """Writes a chart with its caption."""
    return element("figure", element("figcaption", element("strong", title), element("span", about)), drawing)


def charts(figures: Sequence[Markup]) -> Markup:
    """Puts charts beside each other, two or three in a row as there is least left over."""
    return element("div", *figures, class_="charts three" if len(figures) % 3 == 0 else "charts")


def lines_legend(lines: Iterable[tuple[int, str]], label: str) -> Markup:
    """Names lines by the numbers that they are drawn with."""
    items = (element("li", swatch(number), element("span", words)) for number, words in lines)
    return element("ul", *items, class_="key", aria_label=label)


def legend(entries: Sequence[Entry]) -> Markup | None:
    """Names the runs with their lines and markers; None for one alone, which needs no name."""
    if len(entries) < 2:
        return None
    items = (
        element("li", swatch(entry.number), element("span", entry.label), data_shows=str(entry.number))
        for entry in entries
    )
    return element("ul", *items, class_="key", aria_label="runs")


def kinds_legend(kinds: Iterable[tuple[str, str]], label: str) -> Markup:
    """Names the kinds of boxes that a chart is made of, with their patterns."""

    def item(kind: str, words: str) -> Markup:
        box = element("rect", x=0.5, y=1.5, width=17.0, height=11.0, class_=f"k-{kind}")
        drawn = element("svg", box, class_="swatch", viewBox="0 0 18 14", width=18.0, height=14.0, aria_hidden="true")
        return element("li", drawn, element("span", words))

    return element("ul", *(item(kind, words) for kind, words in kinds), class_="key", aria_label=label)


def command(name: str, words: str, what: str) -> Markup:
    """Writes a command with a button that copies it.

    Args:
        name: by which it differs from all others of the page.
        words: the command.
        what: that the button copies, for those who hear it.
    """
    # Whoever hears the page is told when it was copied.
    said = element("span", "copy", aria_live="polite")
    button = element(
        "button", said, element("span", f" {what}", class_="unseen"), type="button", class_="copy", data_copies=name
    )
    # A word that fits into a line is not torn apart at its hyphens.
    whole = [piece for word in words.split(" ") for piece in (Markup(" "), element("span", word, class_="word"))][1:]
    return element("div", element("pre", element("code", *whole, id=name)), button, class_="made")


def facts(caption: str, rows: Iterable[tuple[str, str]]) -> Markup | None:
    """Writes names and values as a table; None where there are none."""
    lines = [element("tr", element("th", name, scope="row"), element("td", value)) for name, value in rows]
    if not lines:
        return None
    table = element("table", element("caption", caption), element("tbody", *lines), class_="facts")
    return element("div", table, class_="scroll")
