"""HTML and SVG by construction: what is not markup already is escaped, wherever it comes from."""

from __future__ import annotations

from html import escape

Value = str | float | bool | None
"""Of an attribute: True stands for its bare name, None and False leave it out."""


class Markup(str):
    """A text that is markup already."""

    __slots__ = ()


def element(name: str, *children: str | None, **attributes: Value) -> Markup:
    """Writes an element.

    Args:
        name: of the element.
        children: markup, or texts, which are escaped; None is left out.
        attributes: with underscores for hyphens; one at the end is dropped, so that ``class_`` can be said.
    """
    said = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    return Markup(f"<{name}{said}>{joined(*children)}</{name}>")


def joined(*children: str | None) -> Markup:
    """Puts markup and texts one after the other; texts are escaped, None is left out."""
    return Markup("".join(child if isinstance(child, Markup) else escaped(child) for child in children if child))


def escaped(text: str) -> Markup:
    """Writes a text so that it is read as it is; signs that cannot be seen are told by a sign that can.

    Among them are those that turn the direction of writing, and halves of characters, which no file can hold.
    """
    plain = text.encode("utf-8", "replace").decode("utf-8")
    return Markup(escape("".join(sign if sign.isprintable() or sign == "\n" else "\ufffd" for sign in plain)))


def _attribute(name: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    # A tenth of a pixel is all that can be seen; a page has thousands of numbers.
    said = escaped(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
    return f' {name}="{said}"'
