"""Networks for images, and where each of them is cut.

::

    after-relu    conv, norm, ReLU6 | features 1 ... 18       | pool, dropout, linear     1280 x 7 x 7 at the second cut
    before-relu   conv, norm | ReLU6, features 1 ... 18       | pool, dropout, linear     the same sizes, of any sign
    pooled        conv, norm | ReLU6, features 1 ... 18, pool |       dropout, linear     1280: 49 times fewer, the same
    two-and-two   features 0, 1 | features 2 ... 17 | feature 18, pool, dropout, linear
    even          thirds of the multiplications
                    client            server                         client

``mobilenet_v2_cifar``, which document 003 trained from scratch, has no rectifier after its first norm, and cuts of its
own; the others are as above::

    before-norm   conv, norm | blocks, conv                   | norm, ReLU, pool, linear  1280 x 4 x 4, of any sign
    pooled        conv, norm | blocks, conv, norm, ReLU, pool | linear                    1280: 16 times fewer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from thinpipe.models import mobilenet_v2, mobilenet_v2_cifar, resnet18, vgg13
from thinpipe.train.subject import Cut
from thinpipe.train.weights import Draw, as_pytorch


@dataclass(frozen=True)
class Network:
    """A network for images.

    Args:
        make: builds it for a number of classes, with a share that is dropped before the last layers.
        cuts: by name.
        draw: draws its first weights (default: as torchvision's MobileNetV2 begins).
    """

    make: Callable[[int, float], nn.Sequential]
    cuts: Mapping[str, Cut]
    draw: Draw | None = None


def _mobilenet_v2_32px(classes: int, dropout: float) -> nn.Sequential:
    """Builds MobileNetV2 for images of 32 pixels: neither the first layer nor the first wide block halves them.

    So the last map is of 4 x 4, as Epipe's pooling of 4 x 4 expects it of their runs from scratch; as it is made
    for ImageNet the network would be down to a single point, after the first layer had left 16 x 16.
    """
    model = mobilenet_v2(classes, dropout=dropout)
    for name in ("features_0_0", "features_2_conv_1_0"):
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Conv2d) and layer.stride == (2, 2)
        layer.stride = (1, 1)
    return model


_MOBILENET = {
    "after-relu": Cut("features_1_conv_0_0", "avgpool"),
    "before-relu": Cut("features_0_2", "avgpool"),
    "pooled": Cut("features_0_2", "classifier_0"),
    "two-and-two": Cut("features_2_conv_0_0", "features_18_0"),
    "even": Cut("features_6_identity", "features_13_identity"),
}

NETWORKS: dict[str, Network] = {
    "mobilenet_v2": Network(lambda classes, dropout: mobilenet_v2(classes, dropout=dropout), _MOBILENET),
    "mobilenet_v2_32px": Network(_mobilenet_v2_32px, _MOBILENET),
    "mobilenet_v2_cifar": Network(
        lambda classes, _: mobilenet_v2_cifar(classes),
        {
            "before-norm": Cut("layers_0_identity", "bn2"),
            "pooled": Cut("layers_0_identity", "linear"),
            "two-and-two": Cut("layers_1_identity", "conv2"),
            "even": Cut("layers_7_identity", "layers_13_conv1"),
        },
        draw=as_pytorch,
    ),
    "resnet18": Network(
        lambda classes, _: resnet18(classes),
        {
            "after-relu": Cut("maxpool", "avgpool"),
            "before-relu": Cut("relu", "avgpool"),
            "pooled": Cut("relu", "fc"),
            "two-and-two": Cut("layer1_1_identity", "layer4_1_identity"),
            "even": Cut("layer2_1_identity", "layer3_1_identity"),
        },
    ),
    "vgg13": Network(
        lambda classes, dropout: vgg13(classes, dropout=dropout),
        {
            "after-relu": Cut("features_2", "avgpool"),
            "before-relu": Cut("features_1", "avgpool"),
            "pooled": Cut("features_1", "classifier_0"),
            "two-and-two": Cut("features_4", "features_22"),
            "even": Cut("features_9", "features_14"),
        },
    ),
}
"""By the name that a recipe's ``model`` has."""
