"""Quantities as people read them."""

from __future__ import annotations

from thinpipe.remote.cost import size_text


def time_text(seconds: float | None) -> str:
    """Says seconds as milliseconds, so that a column has one unit."""
    return "" if seconds is None else f"{1e3 * seconds:,.1f} ms"


def rate_text(rate: float | None) -> str:
    """Says bytes a second as networks are measured."""
    return "" if rate is None else f"{8e-6 * rate:,.2f} Mbit/s"


def bytes_text(size: float | None) -> str:
    """Says a number of bytes."""
    return "" if size is None else size_text(size)


def times_text(factor: float) -> str:
    """Says how many times as much something is, with as many digits as a reader needs."""
    return f"{factor:,.2f}" if factor < 2 else f"{factor:,.1f}" if factor < 100 else f"{factor:,.0f}"


def short_text(value: float) -> str:
    """Says a number beside an axis."""
    return f"{value:,.4g}" if abs(value) >= _NOTHING else "0"


def percent_text(value: float) -> str:
    """Says a share beside an axis."""
    return f"{short_text(100 * value)}%"


_NOTHING = 1e-12
"""What sums of tenths are off from 0."""
