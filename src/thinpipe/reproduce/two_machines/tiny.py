"""A small model of the same shape of work, for trying the command.

::

    before-relu   conv, norm | ReLU6, depthwise, pointwise, norm, ReLU6       | pool, linear     160 x 7 x 7 at cut 2
    pooled        conv, norm | ReLU6, depthwise, pointwise, norm, ReLU6, pool |       linear     160: 49 times fewer
                   client                    server                              client

It computes little for the bytes that it sends, as a server's GPU would.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional

from thinpipe.bottleneck import insert
from thinpipe.train import Parts
from thinpipe.train.weights import built

PIXELS = 84
CLASSES = 10
_MIDDLE = 2
_LAST = {"before-relu": 7, "pooled": 9}
"""The layers with which the server's part begins, and the client's last part."""


def tiny_model() -> nn.Sequential:
    """Builds the whole."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv=nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False),
        norm=nn.BatchNorm2d(32),
        relu=nn.ReLU6(),
        depthwise=nn.Conv2d(32, 32, 6, stride=6, groups=32, bias=False),
        pointwise=nn.Conv2d(32, 160, 1, bias=False),
        middle_norm=nn.BatchNorm2d(160),
        middle_relu=nn.ReLU6(),
        pool=nn.AdaptiveAvgPool2d(1),
        flat=nn.Flatten(),
        linear=nn.Linear(160, CLASSES),
    )
    return nn.Sequential(layers)


def tiny_parts(cut: str, bottleneck: str, example: Tensor) -> Parts:
    """Builds the whole, cuts it, and puts bottlenecks at its cuts.

    Args:
        cut: where.
        bottleneck: as it is written, or ``none``.
        example: inputs of one row.
    """
    layers = list(built(tiny_model, 0).named_children())
    stages = [
        nn.Sequential(OrderedDict(layers[begin:end]))
        for begin, end in ((0, _MIDDLE), (_MIDDLE, _LAST[cut]), (_LAST[cut], None))
    ]
    first, middle, last = insert(stages, bottleneck, example=example)
    return Parts(first, middle, last, functional.cross_entropy)
