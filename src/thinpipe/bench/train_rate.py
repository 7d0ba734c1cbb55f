"""What ``thinpipe bench train`` measures: a recipe on one device, and cut into stages with a codec.

A row has its name from what it is::

    one-device      the whole model, without a codec
    cut-none        stages, and tensors cross the cuts as they are
    cut-had:4       stages, and a codec packs activations and gradients alike
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from thinpipe.suggest import instead_of
from thinpipe.train.cuts import cut_model
from thinpipe.train.per_cut import per_cut
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.settings import Settings

BENCH = "train"
ONE_DEVICE = "one-device"
_CUT, _NONE = "cut-", "none"
_BETWEEN = re.compile(r"[/|,]")


@dataclass(frozen=True)
class Row:
    """One row.

    Args:
        name: ``one-device``, or ``cut-`` and a codec; as ``cut-power:3/power:7`` it has one for each cut.
    """

    name: str

    @classmethod
    def of_codec(cls, codec: str) -> Row:
        """Names the row that is cut and has this codec."""
        return cls(f"{_CUT}{codec}")

    @property
    def is_cut(self) -> bool:
        """Whether the model is cut into stages."""
        return self.name != ONE_DEVICE

    @property
    def codec(self) -> str | None:
        """What packs at the cuts; None where there are none, or where tensors cross them as they are."""
        text = self.name.removeprefix(_CUT)
        return text if self.is_cut and text != _NONE else None

    @property
    def file(self) -> str:
        """Its name as a part of that of a file."""
        return _BETWEEN.sub("-", self.name.replace(":", ""))

    def settings(self, *, stages: int, device: str, compile: bool) -> Settings:
        """Says how ``thinpipe train`` is told to train it."""
        said = Settings(device=device, compile=compile or None)
        return replace(said, stages=stages, codec=self.codec, grad_codec=self.codec) if self.is_cut else said


def rows_named(names: Iterable[str]) -> tuple[Row, ...]:
    """Finds rows by name, that of one device first: the others are compared with it as soon as they are measured.

    Raises:
        RecipeError: a name is no row's.
    """
    rows = [Row(name) for name in dict.fromkeys(names)]
    for row in rows:
        if row.is_cut and not row.name.startswith(_CUT):
            known = (ONE_DEVICE, f"{_CUT}{_NONE}", f"{_CUT}had:4")
            raise RecipeError(f"no row is called {row.name!r:.40}; {instead_of(row.name, known)}")
    return tuple(sorted(rows, key=lambda row: row.is_cut))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that is measured by one command.

    Args:
        recipe: what every row trains.
        rows: in the order in which they are trained.
        stages: into how many the model is cut.
        device: of everything.
        compile: whether stages are compiled.
        tiny: whether it is small work, to try the command.
    """

    recipe: Recipe
    rows: tuple[Row, ...]
    stages: int
    device: str
    compile: bool
    tiny: bool

    def settings(self, row: Row) -> Settings:
        """Says how a row is trained."""
        return row.settings(stages=self.stages, device=self.device, compile=self.compile)

    def verify(self) -> Plan:
        """Checks that all rows can be trained here before time is spent on the first, and returns the plan.

        Raises:
            ThinpipeError: there is no such device or codec, the model cannot be cut so, or there are no epochs.
            ImportError: the model needs a package that is not installed.
        """
        if not self.recipe.epochs:
            raise RecipeError("there is no rate without a step, and no step in 0 epochs; write --epochs 2")
        for row in self.rows:
            self.settings(row).verify()
        cut = [row for row in self.rows if row.is_cut]
        for row in cut[:1]:
            cut_model(self.recipe, self.settings(row))
        for row in cut:
            per_cut(row.codec, self.stages - 1)
        return self
