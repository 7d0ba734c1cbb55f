"""ResNet-18 and ResNet-101 as one row of layers; residuals are skips, so a cut may go through a block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import nn

from thinpipe.models.names import accept_torchvision_names
from thinpipe.models.skips import added, stashed
from thinpipe.stages.skip import Namespace

Layers = OrderedDict[str, nn.Module]
Block = Callable[[Layers, str, int, int, int], None]


def _conv(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False)


def _around(
    layers: Layers, name: str, channels_in: int, channels_out: int, stride: int, body: Callable[[], None]
) -> None:
    """Puts a residual around what ``body`` adds."""
    bridge = Namespace()
    layers[f"{name}_identity"] = stashed(bridge)
    body()
    if stride != 1 or channels_in != channels_out:
        shortcut = nn.Sequential(_conv(channels_in, channels_out, 1, stride), nn.BatchNorm2d(channels_out))
        layers[f"{name}_downsample"] = added(bridge, shortcut)
    else:
        layers[f"{name}_residual"] = added(bridge)
    layers[f"{name}_relu"] = nn.ReLU()


def _basic(layers: Layers, name: str, channels_in: int, width: int, stride: int) -> None:
    def body() -> None:
        layers[f"{name}_conv1"] = _conv(channels_in, width, 3, stride)
        layers[f"{name}_bn1"] = nn.BatchNorm2d(width)
        layers[f"{name}_relu1"] = nn.ReLU()
        layers[f"{name}_conv2"] = _conv(width, width, 3)
        layers[f"{name}_bn2"] = nn.BatchNorm2d(width)

    _around(layers, name, channels_in, width, stride, body)


def _bottleneck(layers: Layers, name: str, channels_in: int, width: int, stride: int) -> None:
    def body() -> None:
        layers[f"{name}_conv1"] = _conv(channels_in, width, 1)
        layers[f"{name}_bn1"] = nn.BatchNorm2d(width)
        layers[f"{name}_relu1"] = nn.ReLU()
        layers[f"{name}_conv2"] = _conv(width, width, 3, stride)
        layers[f"{name}_bn2"] = nn.BatchNorm2d(width)
        layers[f"{name}_relu2"] = nn.ReLU()
        layers[f"{name}_conv3"] = _conv(width, 4 * width, 1)
        layers[f"{name}_bn3"] = nn.BatchNorm2d(4 * width)

    _around(layers, name, channels_in, 4 * width, stride, body)


def _resnet(block: Block, expansion: int, repeats: list[int], num_classes: int) -> nn.Sequential:
    layers: Layers = OrderedDict()
    layers["conv1"] = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
    layers["bn1"] = nn.BatchNorm2d(64)
    layers["relu"] = nn.ReLU()
    layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    channels = 64
    for group, repeat in enumerate(repeats):
        width = 64 * 2**group
        for k in range(repeat):
            block(layers, f"layer{group + 1}_{k}", channels, width, 2 if group and not k else 1)
            channels = width * expansion
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flat"] = nn.Flatten()
    layers["fc"] = nn.Linear(channels, num_classes)
    model = nn.Sequential(layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return accept_torchvision_names(model)


def resnet18(num_classes: int = 1000) -> nn.Sequential:
    """Builds ResNet-18; loads torchvision's weights.

    Args:
        num_classes: the number of classes (default: 1000).
    """
    return _resnet(_basic, 1, [2, 2, 2, 2], num_classes)


def resnet101(num_classes: int = 1000) -> nn.Sequential:
    """Builds ResNet-101, of 370 layers; loads torchvision's weights.

    Args:
        num_classes: the number of classes (default: 1000).
    """
    return _resnet(_bottleneck, 4, [3, 4, 23, 3], num_classes)
