"""The rows of the table: a link, a cut, codecs and a number of micro-batches each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from thinpipe.codecs import codec as codec_of
from thinpipe.links.throttle import parse_rate
from thinpipe.train.per_cut import codecs_in

FULL = "full"
CUTS = ("documents", "pooled")
CODECS = ("none", "power:3/power:7", "uniform:8", "sort:6+2", "block:4")
CHUNKS = (1, 4, 8)
BANDWIDTHS = (FULL, "4gbit", "1gbit", "200mbit", "100mbit")
"""Those that the page has a place for; a command takes any."""


@dataclass(frozen=True)
class Row:
    """One row.

    Args:
        bandwidth: of the link each way, as ``4gbit``; ``full`` for as fast as it is.
        cut: where the model is cut, ``documents`` or ``pooled``.
        codec: for activations and gradients; one for both cuts, or as ``power:3/power:7`` one for each.
        chunks: micro-batches.
    """

    bandwidth: str
    cut: str
    codec: str
    chunks: int

    @property
    def name(self) -> str:
        """Of the row, and of its file."""
        codec = self.codec.replace(":", "").replace("/", "-").replace("|", "-")
        return f"{self.bandwidth}-{self.cut}-{codec}-{self.chunks}"

    @property
    def rate(self) -> float | None:
        """Bits a second, None for full speed.

        Raises:
            ValueError: the bandwidth is none.
        """
        return None if self.bandwidth == FULL else parse_rate(self.bandwidth)

    @property
    def codecs(self) -> tuple[str | None, str | None]:
        """The codec of each cut, None where tensors travel as they are.

        Raises:
            SpecError: there is no such codec.
            ValueError: there are more of them than cuts.
        """
        words = codecs_in(self.codec)
        if len(words) > 2:
            raise ValueError(f"there are two cuts, {self.codec!r} has {len(words)} codecs; write A, or A/B")
        first, second = (None if word == "none" else codec_of(word).spec for word in (words[0], words[-1]))
        return first, second


def table(
    bandwidths: Iterable[str], cuts: Iterable[str], codecs: Iterable[str], chunks: Iterable[int]
) -> tuple[Row, ...]:
    """Lists all rows that can be made of these, those of one link and one number of micro-batches together."""
    return tuple(
        Row(bandwidth, cut, codec, m) for bandwidth, cut, m, codec in product(bandwidths, cuts, chunks, codecs)
    )


def order() -> Sequence[str]:
    """Lists the names of the rows that the page has a place for."""
    return tuple(row.name for row in table(BANDWIDTHS, CUTS, CODECS, CHUNKS))
