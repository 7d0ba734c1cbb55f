"""U-Net as one row of layers, with five skips that a pipeline carries straight across it.

::

    C     cells ─┬─ stash ───────────────────────────── cat ─ cells     C/2
    2C           └ pool ─ cells ─┬─ stash ───── cat ─ cells ┘            C
    ...                          └ ... bottleneck ... ┘
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from torch import nn

from thinpipe.models.skips import joined, stashed
from thinpipe.stages.skip import Namespace

DEPTH = 5


def unet(
    B: int,  # noqa: N803
    C: int,  # noqa: N803
    *,
    input_channels: int = 3,
    output_channels: int = 1,
    in_place: bool = False,
) -> nn.Sequential:
    """Builds a U-Net of depth five, of ``44 B + 21`` layers.

    Args:
        B: convolutions in each cell; one cell goes down, one up at every depth.
        C: channels of the first cell, doubled at every depth.
        input_channels: of the image (default: 3).
        output_channels: of the segmentation (default: 1).
        in_place: whether each LeakyReLU overwrites its input, which the backward pass of the norm before it does not
            need. The output is the same, and about a quarter less memory is kept for the backward pass. Default:
            ``False``, as in torchgpipe's benchmarks.
    """
    if B < 1 or C < 2:
        raise ValueError(f"a U-Net needs at least one convolution a cell and two channels, got B={B}, C={C}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    bridges = [Namespace() for _ in range(DEPTH)]

    def cell(name: str, channels_in: int, channels: int, channels_out: int) -> None:
        widths = [channels_in, *[channels] * (B - 1), channels_out]
        for k, (before, after) in enumerate(pairwise(widths)):
            layers[f"{name}_conv{k}"] = nn.Conv2d(before, after, 3, padding=1, bias=False)
            layers[f"{name}_drop{k}"] = nn.Dropout2d(0.1)
            layers[f"{name}_norm{k}"] = nn.InstanceNorm2d(after)
            layers[f"{name}_relu{k}"] = nn.LeakyReLU(0.01, inplace=in_place)

    width = input_channels
    for depth in range(DEPTH):
        before, width = width, C * 2**depth
        cell(f"down{depth}", before, width, width)
        layers[f"down{depth}_stash"] = stashed(bridges[depth])
        layers[f"down{depth}_pool"] = nn.MaxPool2d(2)
    cell("bottom", width, width * 2, width)
    for depth in reversed(range(DEPTH)):
        before, width = 2 * C * 2**depth, C * 2**depth // 2
        layers[f"up{depth}_upsample"] = nn.Upsample(scale_factor=2)
        layers[f"up{depth}_cat"] = joined(bridges[depth])
        cell(f"up{depth}", before, width, width)
    layers["segment"] = nn.Conv2d(width, output_channels, 1, bias=False)
    return nn.Sequential(layers)
