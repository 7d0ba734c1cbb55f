"""VGG-13: convolutions and rectifiers in a row, as it was from the start."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from thinpipe.models.names import accept_torchvision_names

# Pairs of convolutions of these widths, each pair followed by a pooling.
WIDTHS = [64, 128, 256, 512, 512]


def vgg13(num_classes: int = 1000, *, dropout: float = 0.5) -> nn.Sequential:
    """Builds VGG-13 without batch norm; loads torchvision's weights.

    Args:
        num_classes: the number of classes (default: 1000).
        dropout: between the layers of the classifier (default: 0.5).
    """
    features: list[nn.Module] = []
    channels = 3
    for width in WIDTHS:
        for _ in range(2):
            features += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        features.append(nn.MaxPool2d(2))
    classifier = [
        *(nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout(dropout)),
        *(nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(dropout)),
        nn.Linear(4096, num_classes),
    ]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers.update((f"features_{k}", layer) for k, layer in enumerate(features))
    layers["avgpool"] = nn.AdaptiveAvgPool2d(7)
    layers["flat"] = nn.Flatten()
    layers.update((f"classifier_{k}", layer) for k, layer in enumerate(classifier))
    model = nn.Sequential(layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
            nn.init.zeros_(module.bias)
    return accept_torchvision_names(model)
