"""Small models that are cut where a bottleneck goes, in float64 so that equal means equal."""

import torch
from torch import nn
from torch.nn import functional

from thinpipe import split

PIXELS = 10
TEXTS = "conv:5k3s3/conv:6k2s2+4"


def images(dtype=torch.float64, *, norm=True):
    """Three stages; rows of 4 x 10 x 10 cross the first cut, of 8 x 5 x 5 the second: neither divides evenly."""
    torch.manual_seed(1)
    layers = {
        "first": nn.Conv2d(1, 4, 3, padding=1),
        "wide": nn.Conv2d(4, 8, 3, padding=1, stride=2),
        "norm": nn.BatchNorm2d(8) if norm else nn.Identity(),
        "relu": nn.ReLU(),
        "pool": nn.AdaptiveAvgPool2d(1),
        "flat": nn.Flatten(),
        "head": nn.Linear(8, 3),
    }
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model.to(dtype)


def cut(model):
    return split(model, at=["wide", "pool"])


def batch(rows, dtype=torch.float64, seed=2):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 1, PIXELS, PIXELS, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(3, (rows,), generator=generator)


def example(dtype=torch.float64):
    return torch.zeros(1, 1, PIXELS, PIXELS, dtype=dtype)


def chained(stages):
    """One device: the stages one after the other, bottlenecks included."""
    return nn.Sequential(*stages)


def grads(module):
    return {name: parameter.grad for name, parameter in module.named_parameters()}


loss_fn = functional.cross_entropy
