"""How series look, the same in every picture: Epipe's methods are warm squares, ours are cold circles.

Learned bottlenecks are diamonds.
"""

from __future__ import annotations

from thinpipe.bench.marks import Look, Shape
from thinpipe.reproduce.training.table import NONE

EPIPE: Shape = "square"

LOOKS = {
    NONE: Look(colour="#8e8e8e", shape="circle"),
    "sort": Look(colour="#d6393b", shape=EPIPE),
    "uniform": Look(colour="#f58518", shape=EPIPE),
    "power": Look(colour="#d37aa8", shape=EPIPE),
    "prune": Look(colour="#9d755d", shape=EPIPE),
    "prune, 8 bits": Look(colour="#c8a415", shape=EPIPE),
    "prune, 16 bits": Look(colour="#7c5a2b", shape=EPIPE),
    "downsample": Look(colour="#e58a7b", shape=EPIPE),
    "had": Look(colour="#2f78bf", shape="circle"),
    "wave, less back": Look(colour="#7b3fa0", shape="circle"),
    "wave": Look(colour="#0a8f3c", shape="circle"),
    "block": Look(colour="#2aa7a0", shape="circle"),
    "uniform, with a 0": Look(colour="#5b6fc7", shape="circle"),
    "conv": Look(colour="#3f9a45", shape="diamond"),
    "linear": Look(colour="#3f9a45", shape="diamond"),
    "conv, not fitted": Look(colour="#93c47d", shape="diamond"),
    "conv, had:4": Look(colour="#8457c7", shape="diamond"),
    "conv, wave:4": Look(colour="#b0307f", shape="diamond"),
    "conv, wave:2": Look(colour="#8c1d5c", shape="diamond"),
    "linear, had:4": Look(colour="#8457c7", shape="diamond"),
}
"""By series."""
