"""What bottlenecks leave of the bytes at a cut: packed for real, headers included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from thinpipe.bottleneck.pair import Bottleneck
from thinpipe.codecs import Codec
from thinpipe.codecs import codec as named

ROWS = 16
"""Rows of the tensor that is packed, unless somebody says otherwise."""

MOBILENET_CUTS = ((32, 112, 112), (1280, 7, 7))
"""Rows of MobileNetV2 at 224 pixels where Epipe cuts it: after its first convolution, and after its last."""

DOCUMENTS: Mapping[str, tuple[str, str]] = {
    "0.097": ("conv:20k3s3", "conv:360"),
    "0.070": ("conv:20k4s4", "conv:320"),
    "0.038": ("conv:32k4s4+16", "conv:360+100"),
    "type 0": ("conv:20k3s3", "conv:320"),
    "type 1": ("conv:32k4s4", "conv:240"),
    "type 2": ("conv:8k4s4", "conv:100"),
    "type 3": ("conv:16k4s4", "conv:220"),
    "type 4": ("conv:32k4s4+16", "conv:400+180"),
    "type 5": ("conv:32k4s4+4", "conv:400+100"),
    "type 6": ("conv:32k8s8+16", "conv:300+50"),
    "type 7": ("conv:32k8s8+8", "conv:300+30"),
}
"""The bottlenecks of Epipe at both cuts: the three with published accuracies, and the prototype's types."""


@dataclass(frozen=True)
class Crossed:
    """What one tensor takes at a cut.

    Args:
        wire: the shape of a row there.
        packed: bytes of the packet, header included.
        raw: bytes of the tensor before the bottleneck.
    """

    wire: tuple[int, ...]
    packed: int
    raw: int

    @property
    def ratio(self) -> float:
        """What is left of the bytes."""
        return self.packed / self.raw


def crossing(text: str, x: Tensor, codec: str | Codec = "none") -> Crossed:
    """Makes a tensor small by a new bottleneck, packs it by a codec, and counts."""
    pair = Bottleneck(text, tuple(x.shape[1:]), dtype=x.dtype)
    with torch.no_grad():
        packet = named(codec).encode(pair.sender()(x))
    return Crossed(tuple(packet.shape[1:]), packet.nbytes, x.numel() * x.element_size())


def ratio(text: str, shape: tuple[int, ...], *, codec: str | Codec = "none", rows: int = ROWS) -> float:
    """Tells what a bottleneck and a codec leave of the bytes of rows of a shape, one way; the other way is the same.

    Args:
        text: of the bottleneck.
        shape: of a row.
        codec: on top (default: none).
        rows: of the tensor that is packed: the more, the less the header weighs (default: 16).
    """
    return crossing(text, noise(shape, rows), codec).ratio


@dataclass(frozen=True)
class Row:
    """The bottlenecks of both cuts, and what they leave.

    Args:
        name: Epipe's.
        texts: of the bottlenecks.
        cuts: what crosses each cut.
    """

    name: str
    texts: tuple[str, str]
    cuts: tuple[Crossed, Crossed]

    @property
    def ratio(self) -> float:
        """What is left of the bytes of both cuts together."""
        return sum(cut.packed for cut in self.cuts) / sum(cut.raw for cut in self.cuts)


def documents(codec: str | Codec = "none", *, rows: int = ROWS) -> list[Row]:
    """Packs what crosses the cuts of MobileNetV2 with each of Epipe's bottlenecks.

    Args:
        codec: on top (default: none).
        rows: of the tensors that are packed (default: 16).
    """
    tensors = [noise(shape, rows) for shape in MOBILENET_CUTS]
    found = []
    for name, texts in DOCUMENTS.items():
        first, second = (crossing(text, x, codec) for text, x in zip(texts, tensors, strict=True))
        found.append(Row(name, texts, (first, second)))
    return found


def table(plain: list[Row], packed: list[Row], codec: str) -> str:
    """Writes both in Markdown, side by side."""
    left = f"left of both | of cut 1 | of cut 2 | of both, `{codec}`"
    lines = [
        f"| Epipe's name | cut 1 | its wire | cut 2 | its wire | {left} |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row, also in zip(plain, packed, strict=True):
        sides = [f"`{text}` | {' x '.join(map(str, cut.wire))}" for text, cut in zip(row.texts, row.cuts, strict=True)]
        ratios = [row.ratio, *(cut.ratio for cut in row.cuts), also.ratio]
        lines.append(f"| {row.name} | {' | '.join(sides)} | {' | '.join(f'{each:.4f}' for each in ratios)} |")
    return "\n".join(lines)


def noise(shape: tuple[int, ...], rows: int) -> Tensor:
    """Draws a tensor, always the same."""
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(0))
