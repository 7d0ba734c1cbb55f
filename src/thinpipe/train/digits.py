"""The recipe ``digits``: a small convolutional network on handwritten digits; seconds on a laptop."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from thinpipe.data.digits import load_digits
from thinpipe.train.data import Data, Samples
from thinpipe.train.recipe import Recipe
from thinpipe.train.subject import Cut, Subject
from thinpipe.train.weights import built

# The head needs a mean of each map: where the server takes it, a sixteenth of the bytes crosses the second cut.
_CUTS = {"pooled": Cut("wide", "head"), "unpooled": Cut("wide", "pool")}


def network() -> nn.Sequential:
    """Builds the network, for images of 8 x 8 pixels."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        first=nn.Conv2d(1, 16, 3, padding=1),
        first_relu=nn.ReLU(),
        wide=nn.Conv2d(16, 32, 3, padding=1, bias=False),
        wide_norm=nn.BatchNorm2d(32),
        wide_relu=nn.ReLU(),
        narrow=nn.MaxPool2d(2),
        deep=nn.Conv2d(32, 64, 3, padding=1, bias=False),
        deep_norm=nn.BatchNorm2d(64),
        deep_relu=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(1),
        flat=nn.Flatten(),
        head=nn.Linear(64, 10),
    )
    return nn.Sequential(layers)


def _data(recipe: Recipe) -> Data:
    digits = load_digits()
    train = Samples(digits.train_images, digits.train_labels)
    return Data.of(recipe, train, Samples(digits.test_images, digits.test_labels))


DIGITS = Subject(
    about="a small convolutional network on 1,797 handwritten digits",
    defaults=Recipe(
        name="digits",
        cut="pooled",
        batch=64,
        epochs=10,
        lr=0.1,
        momentum=0.9,
        weight_decay=1e-4,
        seed=0,
        chunks=1,
        pixels=8,
    ),
    cuts=tuple(_CUTS),
    place=lambda recipe, _: _CUTS[recipe.cut],
    model=lambda recipe: built(network, recipe.seed),
    example=lambda _: torch.zeros(1, 1, 8, 8),
    data=_data,
    uses=frozenset({"pixels"}),
    sizes=range(8, 9),
    packages=lambda _: ("sklearn",),
)
