"""What a batch trains: MobileNetV2, or the small model of the same shape; with tensors on the wire, or without any."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from thinpipe.remote.offer import MakeOptimizer, Offer
from thinpipe.reproduce.two_machines.documents import NONE, training
from thinpipe.reproduce.two_machines.dry import dry
from thinpipe.reproduce.two_machines.row import MADE_UP, named
from thinpipe.reproduce.two_machines.tiny import CLASSES, PIXELS, tiny_parts
from thinpipe.train import Parts, Recipe, optimizer, parts, resolved
from thinpipe.train.offers import offer_name
from thinpipe.train.parts import data

RECIPE, REAL = "two-machines", "cifar10-finetune"
_FLOAT32 = 4


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is trained.

    Args:
        cut: ``before-relu`` or ``pooled``.
        bottleneck: at both cuts, with the weights that its text and the seed give it (default: none).
        tiny: whether it is the small model.
        dry: whether nothing is to be on the wire.
        images: ``made-up``, with random weights; or ``cifar10``, with pretrained ones.
        data_dir: the folder of data sets and weights; None for the usual places.
        seed: of weights and inputs.
    """

    cut: str
    bottleneck: str = NONE
    tiny: bool = False
    dry: bool = False
    images: str = MADE_UP
    data_dir: str | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        """Under which a server offers the middle; the recipe's own, where it is the recipe's."""
        if not (self.tiny or self.dry):
            return offer_name(self._recipe)
        real = self.images if self.images != MADE_UP else ""
        small = named(self.bottleneck) if self.bottleneck != NONE else ""
        words = (RECIPE, "tiny" if self.tiny else "", "dry" if self.dry else "", real, self.cut, small)
        return "-".join(filter(None, words))

    @property
    def factory(self) -> str:
        """What ``thinpipe serve --offer`` is told, to offer the middle; only for what is no recipe."""
        place = self.name.removeprefix(f"{RECIPE}-").replace("-", "_")
        return f"{self.name}=thinpipe.reproduce.two_machines.offers:{place}"

    @property
    def pixels(self) -> int:
        """The edge of an image."""
        return PIXELS if self.tiny else self._recipe.pixels

    @cached_property
    def _recipe(self) -> Recipe:
        said: dict[str, Any] = {"cut": self.cut, "seed": self.seed}
        said |= {"bottleneck": self.bottleneck, "bottleneck_fit": 0}
        if self.images == MADE_UP:
            return resolved(RECIPE, said)
        # The rate is a matter of a row's micro-batches: whoever takes a step says it.
        return resolved(REAL, training(1) | said | {"data_dir": self.data_dir or ""})

    def parts(self) -> Parts:
        """Builds the model and cuts it."""
        whole = tiny_parts(self.cut, self.bottleneck, self.example()) if self.tiny else parts(self._recipe)
        return dry(whole, self.example()) if self.dry else whole

    def optimizer(self) -> MakeOptimizer:
        """Returns what makes the optimizer of a side."""
        return optimizer(self._recipe)

    def example(self) -> Tensor:
        """Returns inputs of one row."""
        return torch.zeros(1, 3, self.pixels, self.pixels)

    def batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Draws inputs and targets; or loads the first ones of a training.

        Raises:
            ThinpipeError: there are no such images.
        """
        if self.images != MADE_UP and not self.tiny:
            return data(replace(self._recipe, batch=rows, limit=rows)).batch(0)
        generator = torch.Generator().manual_seed(self.seed)
        images = torch.randn(rows, 3, self.pixels, self.pixels, generator=generator)
        return images, torch.randint(CLASSES, (rows,), generator=generator)

    def row_bytes(self) -> int:
        """Counts what a row's tensors take at both cuts, one way, in float32 and before any bottleneck."""
        plain = replace(self, bottleneck=NONE, dry=False).parts()
        with torch.no_grad():
            first: Tensor = plain.first.eval()(self.example())
            second: Tensor = plain.middle.eval()(first)
        return _FLOAT32 * (first.numel() + second.numel())

    def offer(self) -> Offer:
        """Makes what a server lends."""
        first = self.parts().first.eval()
        with torch.no_grad():
            example = first(self.example())
        return Offer(make=lambda: self.parts().middle, optimizer=self.optimizer(), example=example)
