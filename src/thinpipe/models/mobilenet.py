"""MobileNetV2 as one row of layers; residuals are skips, so a cut may go anywhere.

``mobilenet_v2`` is the network that torchvision has, ``mobilenet_v2_cifar`` the one for CIFAR in kuangliu's
`pytorch-cifar <https://github.com/kuangliu/pytorch-cifar>`_::

                               mobilenet_v2               mobilenet_v2_cifar
    halves the image           five times                 three times: 32 pixels end as 4 x 4
    rectifier                  ReLU6                      ReLU, and none after the first norm
    first block                filters, projects          expands (by 1), filters, projects
    other channels, stride 1   no shortcut                shortcut of a 1 x 1 convolution and a norm
    before the last layer      dropout                    nothing
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from thinpipe.models.depthwise import Depthwise
from thinpipe.models.names import accept_torchvision_names
from thinpipe.models.skips import added, stashed
from thinpipe.stages.skip import Namespace

# Expansion, channels, repeats, and the stride of the first repeat.
BLOCKS = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
_NOT_HALVED = 24
"""The channels of the blocks of which the first halves an image of 224 pixels, and none of 32."""


def mobilenet_v2(num_classes: int = 1000, *, dropout: float = 0.2) -> nn.Sequential:
    """Builds MobileNetV2 of width one; loads torchvision's weights.

    Args:
        num_classes: the number of classes (default: 1000).
        dropout: before the classifier (default: 0.2).
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()

    def activated(name: str, conv: nn.Conv2d) -> None:
        """Adds a convolution, its norm and its rectifier, named as torchvision's ``Conv2dNormActivation``."""
        layers[f"{name}_0"] = conv
        layers[f"{name}_1"] = nn.BatchNorm2d(conv.out_channels)
        layers[f"{name}_2"] = nn.ReLU6()

    def block(name: str, channels_in: int, channels_out: int, stride: int, expansion: int) -> None:
        """Adds an inverted residual: expand, filter each channel by itself, project."""
        width = channels_in * expansion
        residual = stride == 1 and channels_in == channels_out
        bridge = Namespace()
        if residual:
            layers[f"{name}_identity"] = stashed(bridge)
        first = 0
        if expansion != 1:
            activated(f"{name}_conv_0", nn.Conv2d(channels_in, width, 1, bias=False))
            first = 1
        activated(f"{name}_conv_{first}", Depthwise(width, 3, stride=stride))
        layers[f"{name}_conv_{first + 1}"] = nn.Conv2d(width, channels_out, 1, bias=False)
        layers[f"{name}_conv_{first + 2}"] = nn.BatchNorm2d(channels_out)
        if residual:
            layers[f"{name}_residual"] = added(bridge)

    activated("features_0", nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False))
    channels, index = 32, 1
    for expansion, channels_out, repeats, first_stride in BLOCKS:
        for k in range(repeats):
            block(f"features_{index}", channels, channels_out, 1 if k else first_stride, expansion)
            channels = channels_out
            index += 1
    activated(f"features_{index}", nn.Conv2d(channels, 1280, 1, bias=False))
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flat"] = nn.Flatten()
    layers["classifier_0"] = nn.Dropout(dropout)
    layers["classifier_1"] = nn.Linear(1280, num_classes)
    model = nn.Sequential(layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
            nn.init.zeros_(module.bias)
    return accept_torchvision_names(model)


def mobilenet_v2_cifar(num_classes: int = 10) -> nn.Sequential:
    """Builds MobileNetV2 of width one for images of 32 pixels; loads pytorch-cifar's weights.

    The first weights are as PyTorch's layers draw them.

    Args:
        num_classes: the number of classes (default: 10).
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    # No rectifier in front of the first block: its expansion is the next thing that an image meets.
    layers["conv1"] = nn.Conv2d(3, 32, 3, padding=1, bias=False)
    layers["bn1"] = nn.BatchNorm2d(32)
    channels, index = 32, 0
    for expansion, channels_out, repeats, first_stride in BLOCKS:
        for k in range(repeats):
            stride = 1 if k or channels_out == _NOT_HALVED else first_stride
            _cifar_block(layers, f"layers_{index}", channels, channels_out, stride, expansion)
            channels = channels_out
            index += 1
    layers["conv2"] = nn.Conv2d(channels, 1280, 1, bias=False)
    layers["bn2"] = nn.BatchNorm2d(1280)
    layers["relu"] = nn.ReLU()
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flat"] = nn.Flatten()
    layers["linear"] = nn.Linear(1280, num_classes)
    return accept_torchvision_names(nn.Sequential(layers))


def _cifar_block(
    layers: OrderedDict[str, nn.Module], name: str, channels_in: int, channels_out: int, stride: int, expansion: int
) -> None:
    """Adds an inverted residual: expand, filter each channel by itself, project, and add what came in if it fits."""
    width, bridge = channels_in * expansion, Namespace()
    if stride == 1:
        layers[f"{name}_identity"] = stashed(bridge)
    layers[f"{name}_conv1"] = nn.Conv2d(channels_in, width, 1, bias=False)
    layers[f"{name}_bn1"] = nn.BatchNorm2d(width)
    layers[f"{name}_relu1"] = nn.ReLU()
    layers[f"{name}_conv2"] = Depthwise(width, 3, stride=stride)
    layers[f"{name}_bn2"] = nn.BatchNorm2d(width)
    layers[f"{name}_relu2"] = nn.ReLU()
    layers[f"{name}_conv3"] = nn.Conv2d(width, channels_out, 1, bias=False)
    layers[f"{name}_bn3"] = nn.BatchNorm2d(channels_out)
    if stride == 1 and channels_in == channels_out:
        layers[f"{name}_residual"] = added(bridge)
    elif stride == 1:
        shortcut = nn.Sequential(nn.Conv2d(channels_in, channels_out, 1, bias=False), nn.BatchNorm2d(channels_out))
        layers[f"{name}_shortcut"] = added(bridge, shortcut)
