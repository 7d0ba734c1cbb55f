"""The recipe ``two-machines``: MobileNetV2 at 224 pixels on images that are made up, to measure a network with.

::

    before-relu   conv, norm | ReLU6, features 1 ... 18       | pool, dropout, linear    1280 x 7 x 7 at the second cut
    pooled        conv, norm | ReLU6, features 1 ... 18, pool |       dropout, linear    1280: 49 times fewer, the same
                   client              server                          client

The cut, the batch, its micro-batches and the step are those of Epipe's report on two machines; the images are not, and
neither are the weights, which are random: what a batch takes depends on neither.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from thinpipe.models import mobilenet_v2
from thinpipe.train.data import Data, Samples
from thinpipe.train.networks import NETWORKS
from thinpipe.train.recipe import Recipe
from thinpipe.train.subject import Subject
from thinpipe.train.weights import built

CLASSES = 10
_TRAIN, _TEST = 512, 128


def _data(recipe: Recipe) -> Data:
    """Paints images: each class has a pattern of colours of its own, under noise."""
    generator = torch.Generator().manual_seed(recipe.seed)
    patterns = torch.randn(CLASSES, 3, 7, 7, generator=generator)

    def painted(count: int) -> Samples:
        targets = torch.arange(count) % CLASSES
        images = torch.empty(count, 3, recipe.pixels, recipe.pixels, dtype=torch.uint8)
        for image, target in zip(images, targets, strict=True):  # one by one: floats of all are a gigabyte
            noise = torch.randn(image.shape, generator=generator)
            clean = functional.interpolate(patterns[target][None], size=image.shape[1:])[0]
            image.copy_((128 + 24 * clean + 24 * noise).clamp(0, 255))
        return Samples(images, targets)

    return Data.of(recipe, painted(_TRAIN), painted(_TEST))


TWO_MACHINES = Subject(
    about="MobileNetV2 at 224 px on made-up images, to measure a network with",
    defaults=Recipe(
        name="two-machines",
        cut="before-relu",
        batch=64,
        epochs=1,
        lr=0.02,  # 0.005 for each micro-batch, whose gradients Epipe sums
        momentum=0.1,
        seed=0,
        chunks=4,
        pixels=224,
    ),
    cuts=("before-relu", "pooled"),
    place=lambda recipe, _: NETWORKS["mobilenet_v2"].cuts[recipe.cut],
    model=lambda recipe: built(lambda: mobilenet_v2(CLASSES), recipe.seed),
    example=lambda recipe: torch.zeros(1, 3, recipe.pixels, recipe.pixels),
    data=_data,
    uses=frozenset({"pixels"}),
    sizes=range(32, 513),
)
