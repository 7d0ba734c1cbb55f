"""What a batch trains: MobileNetV2, or the small model of the same shape; with tensors on the wire, or without any."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thinpipe.remote.offer import MakeOptimizer, Offer
from thinpipe.reproduce.two_machines.dry import dry
from thinpipe.reproduce.two_machines.tiny import CLASSES, PIXELS, tiny_parts
from thinpipe.train import Parts, Recipe, optimizer, parts, resolved
from thinpipe.train.offers import offer_name

RECIPE = "two-machines"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is trained.

    Args:
        cut: ``documents`` or ``pooled``.
        tiny: whether it is the small model.
        dry: whether nothing is to be on the wire.
        seed: of MobileNetV2's weights, and of the inputs.
    """

    cut: str
    tiny: bool = False
    dry: bool = False
    seed: int = 0

    @property
    def name(self) -> str:
        """Under which a server offers the middle; the recipe's own, where it is the recipe's."""
        if not (self.tiny or self.dry):
            return offer_name(self._recipe)
        words = (RECIPE, "tiny" if self.tiny else "", "dry" if self.dry else "", self.cut)
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

    @property
    def _recipe(self) -> Recipe:
        return resolved(RECIPE, {"cut": self.cut, "seed": self.seed})

    def parts(self) -> Parts:
        """Builds the model and cuts it."""
        whole = tiny_parts(self.cut) if self.tiny else parts(self._recipe)
        return dry(whole, self.example()) if self.dry else whole

    def optimizer(self) -> MakeOptimizer:
        """Returns what makes the optimizer of a side."""
        return optimizer(self._recipe)

    def example(self) -> Tensor:
        """Returns inputs of one row."""
        return torch.zeros(1, 3, self.pixels, self.pixels)

    def batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Draws inputs and targets."""
        generator = torch.Generator().manual_seed(self.seed)
        images = torch.randn(rows, 3, self.pixels, self.pixels, generator=generator)
        return images, torch.randint(CLASSES, (rows,), generator=generator)

    def offer(self) -> Offer:
        """Makes what a server lends."""
        first = self.parts().first.eval()
        with torch.no_grad():
            example = first(self.example())
        return Offer(make=lambda: self.parts().middle, optimizer=self.optimizer(), example=example)
