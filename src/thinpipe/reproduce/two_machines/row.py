"""The rows of the table: a link, a cut, codecs or bottlenecks, and a number of micro-batches each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from thinpipe.bottleneck.spec import parse_cuts
from thinpipe.codecs import codec as codec_of
from thinpipe.links.throttle import parse_rate
from thinpipe.reproduce.two_machines.documents import CHUNKS, CONV, CUT, NONE, POWER
from thinpipe.train.per_cut import codecs_in

FULL = "full"
CUTS = (CUT, "pooled")
CODECS = (NONE, POWER, "wave:4", "had:4", "uniform:8", "sort:6+2", "block:4")
BOTTLENECKS = tuple(CONV.values())
TINY_BOTTLENECKS = ("conv:20k3s3/conv:40",)
"""For the small model's tensors."""
BANDWIDTHS = (FULL, "4gbit", "1gbit", "200mbit", "100mbit")
"""Those that the page has a place for; a command takes any."""
MADE_UP = "made-up"
IMAGES = (MADE_UP, "cifar10")
_BETWEEN = re.compile(r"[/|,]")


@dataclass(frozen=True)
class Row:
    """One row.

    Args:
        bandwidth: of the link each way, as ``4gbit``; ``full`` for as fast as it is.
        cut: where the model is cut, ``before-relu`` or ``pooled``.
        codec: for activations and gradients; one for both cuts, or as ``power:3/3/power:7/3`` one for each.
        chunks: micro-batches.
        bottleneck: learned, at both cuts, as ``conv:20k3s3/conv:360`` (default: none).
    """

    bandwidth: str
    cut: str
    codec: str
    chunks: int
    bottleneck: str = NONE

    @property
    def method(self) -> str:
        """What makes the tensors small, in words."""
        return method(self.codec, self.bottleneck)

    @property
    def name(self) -> str:
        """Of the row, and of its file."""
        return f"{self.bandwidth}-{self.cut}-{named(self.method)}-{self.chunks}"

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
        first, second = (None if word == NONE else codec_of(word).spec for word in (words[0], words[-1]))
        return first, second

    def verify(self) -> None:
        """Checks what was asked for.

        Raises:
            SpecError: there is no such codec or bottleneck.
            ValueError: the bandwidth is none, or there are more codecs or bottlenecks than cuts.
        """
        _ = self.rate, self.codecs
        if len(parse_cuts(self.bottleneck)) != (1 if self.bottleneck == NONE else 2):
            raise ValueError(f"there are two cuts; write a bottleneck for each, A/B, got {self.bottleneck!r}")


def method(codec: str, bottleneck: str) -> str:
    """Says what makes tensors small: a codec, or a bottleneck."""
    return codec if bottleneck == NONE else bottleneck


def named(text: str) -> str:
    """Makes a part of a file's name of codecs or bottlenecks."""
    return _BETWEEN.sub("-", text.replace(":", ""))


def table(
    bandwidths: Iterable[str],
    cuts: Iterable[str],
    codecs: Iterable[str],
    bottlenecks: Iterable[str],
    chunks: Iterable[int],
) -> tuple[Row, ...]:
    """Lists all rows that can be made of these, those of one link and one number of micro-batches together.

    Bottlenecks are made for the tensors of Epipe's cut, and have no rows elsewhere.
    """
    codecs, bottlenecks = tuple(codecs), tuple(bottlenecks)
    return tuple(
        Row(bandwidth, cut, codec, m, bottleneck)
        for bandwidth, cut, m in product(bandwidths, cuts, chunks)
        for codec, bottleneck in (
            *((each, NONE) for each in codecs),
            *((NONE, each) for each in bottlenecks if cut == CUT),
        )
    )


def order() -> Sequence[str]:
    """Lists the names of the rows that the page has a place for."""
    return tuple(row.name for row in table(BANDWIDTHS, CUTS, CODECS, BOTTLENECKS, CHUNKS))
