"""The section of a page that compares runs in a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from thinpipe.report.comparison import Row, compare
from thinpipe.report.drawing import swatch
from thinpipe.report.entry import Entry
from thinpipe.report.markup import Markup, element
from thinpipe.report.page_parts import section


def table_section(entries: Sequence[Entry]) -> Markup:
    """Writes the table: a row for each quantity, a column for each run."""
    several = len(entries) > 1
    title = "Comparison" if several else "Figures"
    about = f"What {'each' if several else 'the'} run reached, what it sent, and how fast it was."
    columns = (
        element("th", swatch(entry.number) if several else None, element("span", entry.label), scope="col")
        for entry in entries
    )
    meaning = element("th", "meaning", scope="col", class_="meaning")
    head = element("thead", element("tr", element("th", "quantity", scope="col"), *columns, meaning))
    said = "Means of full batches without the first, where nothing else is said."
    dash = " A dash stands for what nobody measured." if several else ""
    caption = element("caption", element("span", said + dash))
    table = element("table", caption, head, *_bodies(entries), class_="compare")
    return section(
        "table",
        title,
        about,
        # Whoever has no mouse scrolls a wide table with the arrow keys, once it has the focus.
        element("div", table, class_="scroll", role="region", aria_label=f"{title}, a table", tabindex="0"),
    )


def _bodies(entries: Sequence[Entry]) -> Iterator[Markup]:
    for group, rows in groupby(compare(entries), key=lambda row: row.group):
        head = element("tr", element("th", group, scope="rowgroup", colspan=str(len(entries) + 2)), class_="group")
        yield element("tbody", head, *(_row(row) for row in rows))


def _row(row: Row) -> Markup:
    unit = element("span", f" {row.unit}", class_="unit") if row.unit else None
    name = element("th", row.name, unit, scope="row")
    return element("tr", name, *map(_cell, row.values), element("td", row.meaning, class_="meaning"))


def _cell(value: str) -> Markup:
    if value:
        return element("td", value)
    dash, spoken = element("span", "-", aria_hidden="true"), element("span", "not measured", class_="unseen")
    return element("td", dash, spoken, class_="none")
