"""AmoebaNet-D: a row of evolved cells, each passing its output and its input to the next.

A cell has two inputs, the output of the cell before and of the one before that. Five sums of two operations each are
made from them and from each other, and some of the seven tensors are joined as the cell's output. Which operation on
which tensor is data: the genotype that evolution found.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Genotype:
    """What a cell computes.

    Args:
        operations: ten pairs of a state and an operation on it, two to a sum; states 0 and 1 are the cell's inputs,
            2 to 6 the sums.
        joined: the states that make the output.
    """

    operations: tuple[tuple[int, str], ...]
    joined: tuple[int, ...]


# The states that are joined in a normal cell are those of the TensorFlow reference, which the sizes published for GPipe
# agree with; the paper that introduced the network joins 4, 5 and 6.
NORMAL = Genotype(
    operations=(
        *((1, "conv_1x1"), (1, "max_pool_3x3")),
        *((1, "none"), (0, "conv_1x7_7x1")),
        *((0, "conv_1x1"), (0, "conv_1x7_7x1")),
        *((2, "max_pool_3x3"), (2, "none")),
        *((1, "avg_pool_3x3"), (5, "conv_1x1")),
    ),
    joined=(0, 3, 4, 6),
)
REDUCTION = Genotype(
    operations=(
        *((0, "max_pool_2x2"), (0, "max_pool_3x3")),
        *((2, "none"), (1, "conv_3x3")),
        *((2, "conv_1x7_7x1"), (2, "max_pool_3x3")),
        *((3, "none"), (1, "max_pool_2x2")),
        *((2, "avg_pool_3x3"), (3, "conv_1x1")),
    ),
    joined=(4, 5, 6),
)


def _relu_conv_norm(
    channels_in: int,
    channels_out: int,
    kernel: Any = 1,
    stride: Any = 1,
    padding: Any = 0,
    *,
    in_place: bool = False,
) -> nn.Module:
    """Makes the block all cells are built of; in place where its input is nobody else's and its maker keeps none."""
    return nn.Sequential(
        nn.ReLU(inplace=in_place),
        nn.Conv2d(channels_in, channels_out, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(channels_out),
    )


class HalvedInTwo(nn.Module):
    """Halves an image without losing every other pixel: one convolution takes the even ones, one the odd.

    Args:
        channels_in: of the input.
        channels_out: of the output, half of them from each convolution.
    """

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.even = nn.Conv2d(channels_in, channels_out // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(channels_in, channels_out // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """Returns an image of half the height and width."""
        x = self.relu(x)
        shifted = nn.functional.pad(x[:, :, 1:, 1:], [0, 1, 0, 1])
        output: Tensor = self.norm(torch.cat([self.even(x), self.odd(shifted)], dim=1))
        return output


def _average(stride: int) -> nn.Module:
    return nn.AvgPool2d(3, stride=stride, padding=1, count_include_pad=False)


def _operations(*, published_pooling: bool) -> dict[str, Callable[[int, int], nn.Module]]:
    """Names the operations; each is made for a number of channels and a stride."""

    def seven(c: int, stride: int) -> nn.Module:
        return nn.Sequential(
            _relu_conv_norm(c, c // 4),
            _relu_conv_norm(c // 4, c // 4, (1, 7), (1, stride), (0, 3), in_place=True),
            _relu_conv_norm(c // 4, c // 4, (7, 1), (stride, 1), (3, 0), in_place=True),
            _relu_conv_norm(c // 4, c, in_place=True),
        )

    def three(c: int, stride: int) -> nn.Module:
        return nn.Sequential(
            _relu_conv_norm(c, c // 4),
            _relu_conv_norm(c // 4, c // 4, 3, stride, 1, in_place=True),
            _relu_conv_norm(c // 4, c, in_place=True),
        )

    return {
        "none": lambda c, stride: nn.Identity() if stride == 1 else HalvedInTwo(c, c),
        "avg_pool_3x3": lambda _, stride: _average(stride),
        "max_pool_2x2": lambda _, stride: nn.MaxPool2d(2, stride),
        # The published tables were measured with an average in this place.
        "max_pool_3x3": lambda _, stride: _average(stride) if published_pooling else nn.MaxPool2d(3, stride, padding=1),
        "conv_1x1": lambda c, stride: _relu_conv_norm(c, c, 1, stride),
        "conv_1x7_7x1": seven,
        "conv_3x3": three,
    }


class Cell(nn.Module):
    """One cell: takes and returns a pair, its own output and that of the cell before.

    Args:
        before_last: the channels of the output before the last one.
        last: the channels of the last output.
        channels: of every state of this cell.
        genotype: what it computes.
        after_reduction: whether the last cell halved the image, so that the output before it is twice as large.
        published_pooling: whether "max_pool_3x3" is the published average.
    """

    def __init__(
        self,
        before_last: int,
        last: int,
        channels: int,
        *,
        genotype: Genotype,
        after_reduction: bool,
        published_pooling: bool,
    ) -> None:
        super().__init__()
        self.genotype = genotype
        self.last = _relu_conv_norm(last, channels)
        self.before_last: nn.Module = nn.Identity()
        if after_reduction:
            self.before_last = HalvedInTwo(before_last, channels)
        elif before_last != channels:
            self.before_last = _relu_conv_norm(before_last, channels)
        make = _operations(published_pooling=published_pooling)
        halves = genotype is REDUCTION
        self.operations = nn.ModuleList(
            make[name](channels, 2 if halves and state < 2 else 1) for state, name in genotype.operations
        )

    def forward(self, inputs: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the cell's output and its newer input; the first cell of all has one input for both."""
        last, before_last = inputs if isinstance(inputs, tuple) else (inputs, inputs)
        states = [self.last(last), self.before_last(before_last)]
        done = [
            (state, operation) for (state, _), operation in zip(self.genotype.operations, self.operations, strict=True)
        ]
        for (a, first), (b, second) in zip(done[::2], done[1::2], strict=True):
            states.append(first(states[a]) + second(states[b]))
        return torch.cat([states[k] for k in self.genotype.joined], dim=1), last


class Classify(nn.Module):
    """Takes the mean over the image and classifies it.

    Args:
        channels: of the last cell's output.
        num_classes: the number of classes.
    """

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """Returns a score for each class."""
        scores: Tensor = self.linear(self.pool(inputs[0]).flatten(1))
        return scores


def amoebanetd(L: int, D: int, *, num_classes: int = 1000, published_pooling: bool = False) -> nn.Sequential:  # noqa: N803
    """Builds an AmoebaNet-D of ``L + 6`` layers: a stem, two reductions, and ``L`` normal cells in three groups.

    Args:
        L: the number of normal cells, a multiple of three.
        D: the number of filters; cells begin with a quarter of it and double it at each of four reductions.
        num_classes: the number of classes (default: 1000).
        published_pooling: whether "max_pool_3x3" is an average, as in the published tables (default: ``False``).
    """
    if L < 3 or L % 3 or D % 16:
        raise ValueError(f"L must be a multiple of 3 and D one of 16, got L={L}, D={D}")
    channels = D // 4
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem1"] = nn.Sequential(
        nn.ReLU(), nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(channels)
    )
    before_last = last = channels
    after_reduction = False

    def add(name: str, genotype: Genotype) -> None:
        nonlocal channels, before_last, last, after_reduction
        if genotype is REDUCTION:
            channels *= 2
        layers[name] = Cell(
            before_last,
            last,
            channels,
            genotype=genotype,
            after_reduction=after_reduction,
            published_pooling=published_pooling,
        )
        before_last, last = last, channels * len(genotype.joined)
        after_reduction = genotype is REDUCTION

    add("stem2", REDUCTION)
    add("stem3", REDUCTION)
    for group in range(3):
        if group:
            add(f"reduction{group}", REDUCTION)
        for k in range(L // 3):
            add(f"normal{group}_{k}", NORMAL)
    layers["classify"] = Classify(last, num_classes)
    return nn.Sequential(layers)
