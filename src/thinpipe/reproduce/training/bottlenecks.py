"""Rows with learned bottlenecks: Epipe's own sizes, smaller ones, and a codec on top of them."""

from __future__ import annotations

from thinpipe.bottleneck.ratios import DOCUMENTS as SIZES
from thinpipe.reproduce.training.table import NONE, Learned, Published, Row, Table, Work
from thinpipe.reproduce.training.works import COLA, CONV_INSERT

_TINY_CONV = {
    "0.097": "conv:12k2s2/conv:18",
    "0.070": "conv:10k2s2/conv:16",
    "0.038": "conv:16k2s2+8/conv:18+5",
    "type 5": "conv:16k2s2+4/conv:20+5",
    "type 6": "conv:16k4s4+8/conv:15+4",
    "type 7": "conv:16k4s4+4/conv:15+3",
}
"""For digits, whose rows are of 16 x 8 x 8 and of 64 x 4 x 4, by the names of Epipe's sizes."""


def _conv(name: str, *, fitted: bool = True) -> Learned:
    return Learned(text="/".join(SIZES[name]), tiny=_TINY_CONV[name], fitted=fitted)


def _row(work: Work, kind: str, learned: Learned, published: Published | None = None, codec: str = NONE) -> Row:
    series = kind if codec == NONE else f"{kind}, {codec}"
    series += "" if learned.fitted else ", not fitted"
    return Row(work=work, codec=codec, series=series, learned=learned, published=published or Published())


_SIMULATED = "from dataparallel/compression_simulation/Readme.md"
_TWO_MACHINES = "from the table of two machines, batches of 64"
_CONV_FIGURES = {
    "0.097": Published(value=0.9601, ratio=0.097, note=_TWO_MACHINES),
    "0.070": Published(value=0.9587, upto=0.9589, ratio=0.070, note=_TWO_MACHINES),
    "0.038": Published(value=0.9570, ratio=0.038, note="from pipeline_training/Readme.md, batches of 64"),
}

CONV_ROWS = (
    *(_row(CONV_INSERT, "conv", _conv(name), _CONV_FIGURES.get(name)) for name in _TINY_CONV),
    _row(CONV_INSERT, "conv", _conv("0.070", fitted=False)),
    _row(CONV_INSERT, "conv", _conv("0.097"), codec="had:4"),
    *(_row(CONV_INSERT, "conv", _conv(name), codec="wave:4") for name in ("0.097", "0.038", "type 5", "type 7")),
    _row(CONV_INSERT, "conv", _conv("0.097"), codec="wave:2"),
)
"""Of CIFAR-10. Smaller than three sizes Epipe has types without figures."""

BOTTLENECKS = Table(
    name="bottlenecks-cifar10",
    title="Learned bottlenecks, MobileNetV2 on CIFAR-10",
    about="accuracy on CIFAR-10 with learned bottlenecks, and codecs on them",
    rows=(
        Row(work=CONV_INSERT, codec=NONE, series=NONE, published=Published(value=0.9584, ratio=1.0, note=_SIMULATED)),
        *CONV_ROWS,
    ),
    source="Epipe warmed its bottlenecks up on ImageNet for ten epochs; ours are fitted to the first batches.",
    needs="thinpipe\\[data]; CIFAR-10, and ImageNet weights of MobileNetV2; a GPU",
    time="estimated: half an hour a row and seed with a recent GPU; --tiny: 10 seconds",
)

_CONDITION = (
    "from dataparallel/compression_simulation/Readme.md, with the second cut before the head and compressed alone: "
    "its Condition"
)
_HALF, _FIFTH = Learned(text="linear:384", tiny="linear:16"), Learned(text="linear:150", tiny="linear:8")
# The same shares of an encoder of half the width, which may stand in for theirs.
_NARROW_HALF = Learned(text="linear:192", tiny="linear:12")
_NARROW_FIFTH = Learned(text="linear:75", tiny="linear:6")

LINEAR_ROWS = (
    _row(COLA, "linear", _HALF),
    _row(COLA, "linear", _FIFTH),
    _row(
        COLA,
        "linear",
        Learned(text="none/linear:150", tiny="none/linear:8"),
        Published(value=0.633, note=f"{_CONDITION} 4"),
    ),
    _row(
        COLA,
        "linear",
        Learned(text="none/linear:50", tiny="none/linear:4"),
        Published(value=0.648, upto=0.660, note=f"{_CONDITION}s 4 and 3"),
    ),
    _row(COLA, "linear", _NARROW_HALF),
    _row(COLA, "linear", _NARROW_FIFTH),
    _row(COLA, "linear", _NARROW_FIFTH, codec="had:4"),
)
"""Of CoLA."""
