"""The models that pipelines and data parallel training are compared on: real shapes, random weights.

A model is a row of *units*, between which it may be cut::

    mobilenetv2    features_0 | features_1 ... features_18 | average pool and classifier
    roberta-base   embeddings | layer 0 ... layer 11 | head
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinpipe.cutting import run_whole
from thinpipe.extras import need
from thinpipe.models import mobilenet_v2, vgg13

MOBILENET, VGG, ROBERTA = "mobilenetv2", "vgg13", "roberta-base"
NAMES = (MOBILENET, VGG, ROBERTA)
CLASSES = {MOBILENET: 10, VGG: 10, ROBERTA: 2}
OPTIMIZERS = {MOBILENET: "sgd", VGG: "sgd", ROBERTA: "adamw"}
"""What Epipe trains each with."""

_TINY_WORDS, _WORDS = 100, 50265


@dataclass(frozen=True)
class Shape:
    """A model and the size of what it is trained on.

    Args:
        name: of the model.
        size: height and width of the images, or tokens of a row.
        tiny: whether it is a small one of the same kind, without dropout, for trying things.
    """

    name: str
    size: int
    tiny: bool = False

    @classmethod
    def of(cls, name: str, *, pixels: int = 224, tokens: int = 128, tiny: bool = False) -> Shape:
        """Chooses the size that applies to a model."""
        text = name == ROBERTA
        if tiny:
            return cls(name, 8 if text else 64, tiny=True)
        return cls(name, tokens if text else pixels)

    def model(self) -> nn.Module:
        """Builds it, in training.

        Raises:
            ImportError: RoBERTa is asked for, and transformers is not installed.
        """
        classes = CLASSES[self.name]
        if self.name == ROBERTA:
            return _roberta(classes, tiny=self.tiny)
        if self.name == VGG:
            return _small_vgg(classes) if self.tiny else vgg13(classes)
        return mobilenet_v2(classes, dropout=0.0) if self.tiny else mobilenet_v2(classes)

    def batch(self, rows: int, generator: torch.Generator) -> tuple[Any, Tensor]:
        """Draws inputs and targets; rows of text have no padding, which a CPU would compute all the same."""
        targets = torch.randint(CLASSES[self.name], (rows,), generator=generator)
        if self.name == ROBERTA:
            words = _TINY_WORDS if self.tiny else _WORDS
            ids = torch.randint(3, words, (rows, self.size), generator=generator)
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, targets
        return torch.randn(rows, 3, self.size, self.size, generator=generator), targets

    def units(self, model: nn.Module) -> list[str]:
        """Names the modules with which the units after the first one begin."""
        if self.name == ROBERTA:
            layers: Any = model.get_submodule("roberta.encoder.layer")
            return [*(f"roberta.encoder.layer.{k}" for k in range(len(layers))), "classifier"]
        blocks = groupby(model._modules, key=lambda name: _block(name))
        return [next(names) for _, names in blocks][1:]

    @property
    def parts(self) -> list[str]:
        """What is not as Epipe has it, for the name of a row."""
        if self.tiny:
            return ["tiny"]
        return [] if self == Shape.of(self.name) else [f"size{self.size}"]

    @property
    def ends(self) -> int:
        """How many units a client has at each end: RoBERTa's has the first and the last layer as well."""
        return 2 if self.name == ROBERTA else 1


class Whole(nn.Module):
    """A model that takes and gives what its stages do: a batch in one argument, logits and no more.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Tensor:
        """Computes the logits."""
        logits: Tensor = run_whole(self.model, inputs)
        return logits


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over rows."""
    return functional.cross_entropy(logits, targets)


def optimizer_of(name: str, parameters: Any, *, momentum: float = 0.9) -> torch.optim.Optimizer:
    """Makes ``sgd`` with momentum, ``adamw``, or ``adamw_fused``, which updates a tensor in one go.

    Steps are small, for weights are random and only time counts.
    """
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=momentum)
    # None leaves the choice to PyTorch, as most programs do: one tensor after the other on a CPU, all at once on a GPU.
    return torch.optim.AdamW(parameters, lr=2e-5, fused=True if name == "adamw_fused" else None)


def part_of(tree: Any, rows: slice) -> Any:
    """Takes some rows of a batch."""
    if isinstance(tree, dict):
        return {name: tensor[rows] for name, tensor in tree.items()}
    return tree[rows]


def _roberta(classes: int, *, tiny: bool) -> nn.Module:
    need(ROBERTA, "transformers")
    transformers: Any = importlib.import_module("transformers")
    small = {
        "vocab_size": _TINY_WORDS,
        "hidden_size": 32,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    # The rest of the published configuration is what RobertaConfig has by itself.
    real = {"vocab_size": _WORDS, "max_position_embeddings": 514, "type_vocab_size": 1}
    config = transformers.RobertaConfig(**(small if tiny else real), num_labels=classes)
    model: nn.Module = transformers.RobertaForSequenceClassification(config)
    return model.train()


def _small_vgg(classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(392, classes)
    )


def _block(name: str) -> str:
    """Tells which unit a layer of MobileNetV2 belongs to."""
    return "_".join(name.split("_")[:2]) if name.startswith("features_") else "head"
