"""What is asked of a table, and what that makes of a row: a recipe, and settings to train it with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinpipe.reproduce.training.table import Row, Table
from thinpipe.train import Recipe, resolved
from thinpipe.train.encoder import called, settings_of, weight_files
from thinpipe.train.files import TINY, digest, encoder_folder
from thinpipe.train.recipes import subject_of
from thinpipe.train.settings import Settings

STAGES = 3
_ANYWHERE = "127.0.0.1:0"
_ROBERTA = {"model_type": "roberta", "num_hidden_layers": 12, "hidden_size": 768, "vocab_size": 50_265}

_ON_PAIRS = "all-mpnet-base-v2"
"""An encoder that has been trained on pairs of sentences of which one follows from the other, which is RTE's task."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is asked of a table.

    Args:
        rows: which ones.
        seeds: each row is trained once with each.
        epochs: how many; None for Epipe's.
        chunks: micro-batches in a batch; None for Epipe's.
        changes: other fields of the recipes that are to be different.
        data_dir: the folder of data sets; None for the usual places.
        encoder: the folder of the encoder that texts are trained with; None for RoBERTa-base.
        device: of everything.
        compile: whether stages are compiled.
        tiny: whether it is the small work of the same shape.
    """

    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    epochs: int | None
    chunks: int | None
    changes: Mapping[str, Any]
    data_dir: Path | None
    encoder: Path | None
    device: str
    compile: bool
    tiny: bool


@dataclass(frozen=True)
class Job:
    """A row with a seed, ready to be trained.

    Args:
        table: that it is of.
        row: what is trained.
        seed: of weights, order and all that is drawn.
        recipe: resolved.
        settings: resolved.
        tiny: whether it is the small work.
    """

    table: Table
    row: Row
    seed: int
    recipe: Recipe
    settings: Settings
    tiny: bool

    @classmethod
    def of(cls, table: Table, row: Row, seed: int, ask: Ask, texts: Path | None) -> Job:
        """Makes a job.

        Args:
            table: that the row is of.
            row: what to train.
            seed: with which.
            ask: what was asked for.
            texts: the folder of made-up texts, with ``tiny``.
        """
        work, is_text = row.work, reads_texts(row.work.recipe)
        name, changes = (work.tiny_recipe, work.tiny) if ask.tiny else (work.recipe, work.changes)
        said: dict[str, Any] = dict(changes) | {"seed": seed}
        if row.cut in subject_of(name).cuts_of(said.get("model", "")):
            said["cut"] = row.cut
        folder = texts if ask.tiny and is_text else ask.data_dir
        if row.learned is not None:
            said |= row.learned.fields(tiny=ask.tiny)
        if folder is not None:
            said["data_dir"] = str(folder)
        if ask.encoder is not None and is_text:
            said["model"] = str(ask.encoder)
        if ask.epochs is not None:
            said["epochs"] = ask.epochs
        if ask.chunks is not None:
            said["chunks"] = ask.chunks
        # A row that diverges is recorded like any other, with all its epochs.
        said |= {"on_nan": "continue", **ask.changes}
        recipe = resolved(name, said)
        settings = Settings(
            # Where its server will be is known when that has been started.
            connect=_ANYWHERE if table.served else None,
            stages=None if table.served else STAGES,
            codec=row.packs,
            grad_codec=row.packs_back,
            compile=ask.compile or None,
            device=ask.device,
        ).verify()
        return cls(table, row, seed, recipe, settings, ask.tiny)

    @property
    def name(self) -> str:
        """Of the job, and of its file."""
        return f"{self.row.name}-seed{self.seed}"

    def identity(self) -> dict[str, Any]:
        """Lists what the figures depend on, apart from the machine; jobs that are alike in this are the same.

        Raises:
            RecipeError: the encoder is not there.
        """
        first, second = self.row.codecs
        recipe = self.recipe.numbers()
        if self.row.learned is None:
            recipe = {name: value for name, value in recipe.items() if not name.startswith("bottleneck")}
        if self.is_text:
            # Where an encoder lies is no part of it; what is in its files is.
            recipe["model"] = TINY if self.recipe.model == TINY else digest(encoder_folder(self.recipe))
        return {
            "codec": self.row.codec,
            "codec_cut_1": first,
            "codec_cut_2": second,
            **({} if self.row.gradients is None else {"grad_codec": self.row.gradients}),
            "cut": self.row.cut,
            "stages": STAGES,
            **({"served": True} if self.table.served else {}),
            "seed": self.seed,
            "tiny": self.tiny,
            "recipe": recipe,
        }

    @property
    def is_text(self) -> bool:
        """Whether an encoder is trained."""
        return reads_texts(self.recipe.name)

    def stand_in(self) -> str | None:
        """Says what is trained in place of what Epipe trained; None if that is what is trained.

        Raises:
            RecipeError: the encoder is not there.
        """
        if not self.is_text:
            return f"stand-in: a small network on handwritten digits, not {self.row.work.label}" if self.tiny else None
        if self.tiny:
            return "stand-in: a tiny random encoder on made-up texts, not RoBERTa-base"
        return encoder_stand_in(self.recipe)


def reads_texts(recipe: str) -> bool:
    """Tells whether a recipe trains an encoder of texts."""
    return "max_length" in subject_of(recipe).uses


def encoder_stand_in(recipe: Recipe) -> str | None:
    """Says what a recipe trains in place of a pretrained RoBERTa-base; None if that is what it trains.

    Raises:
        RecipeError: the encoder is not there.
    """
    folder, found = encoder_folder(recipe), settings_of(recipe)
    if any(found.get(name) != value for name, value in _ROBERTA.items()):
        name = called(folder, found)
        if name == _ON_PAIRS:
            about = "; trained on sentence pairs, SNLI and MultiNLI among them" if recipe.dataset == "rte" else ""
            return f"stand-in: {name}, an MPNet, not RoBERTa-base{about}"
        return f"stand-in: {name:.60}, not RoBERTa-base"
    return None if weight_files(folder) else "stand-in: RoBERTa-base with random weights, not pretrained"
