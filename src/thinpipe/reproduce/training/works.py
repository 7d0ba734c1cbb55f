"""What Epipe trained, in its settings: recipes, cut where it cut them.

With ``--tiny`` images are the handwritten digits that come with scikit-learn, texts are made up, and models are small.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thinpipe.reproduce.training.table import POOLED, Measure, Work

_DIGITS: dict[str, Any] = {"batch": 128, "chunks": 2, "epochs": 3, "cut": "unpooled"}
_TEXTS: dict[str, Any] = {
    "model": "tiny",
    "max_length": 16,
    "batch": 16,
    "chunks": 2,
    "epochs": 2,
    "lr": 1e-2,
    "warmup": 0.1,
    "warmup_steps": 0,
    "precision": "float32",
}
_IMAGE_CUTS = ("after-relu", "before-relu", POOLED)
_TEXT_CUTS = ("condition-1", "two-and-two", "condition-4", POOLED)


def images(
    label: str, recipe: str, samples: tuple[int, int], cuts: tuple[str, ...] = _IMAGE_CUTS, **changes: Any
) -> Work:
    """Makes a work of images.

    Args:
        label: in tables and plots.
        recipe: its name.
        samples: how many were published to train on, and to test with.
        cuts: where it can be cut, the published place first (default: those of fine-tuning).
        changes: what is different from the recipe's defaults.
    """
    return Work(
        label=label,
        recipe=recipe,
        cuts=cuts,
        samples=samples,
        changes=changes,
        tiny_recipe="digits",
        tiny=_DIGITS,
    )


def texts(label: str, recipe: str, measure: Measure, samples: tuple[int, int], **changes: Any) -> Work:
    """Makes a work of texts.

    Args:
        label: in tables and plots.
        recipe: its name.
        measure: what its rows are judged by.
        samples: how many were published to train on, and to test with.
        changes: what is different from the recipe's defaults.
    """
    return Work(
        label=label,
        recipe=recipe,
        cuts=_TEXT_CUTS,
        measure=measure,
        samples=samples,
        changes=changes,
        tiny_recipe=recipe,
        tiny=_TEXTS,
    )


TEXT_SEEDS = (0, 1, 2, 3, 4)
"""RTE and CoLA have few rows to test with, so that seeds scatter more than on images."""

CIFAR10_SAMPLES, CIFAR100_SAMPLES, FOOD101_SAMPLES = (50_000, 10_000), (50_000, 10_000), (75_750, 25_250)
RTE_SAMPLES, COLA_SAMPLES = (2_490, 277), (8_551, 1_043)

CIFAR10 = images("CIFAR-10", "cifar10-finetune", CIFAR10_SAMPLES)
CIFAR10_MEAN = images("CIFAR-10, mean of the last map", "cifar10-finetune", CIFAR10_SAMPLES, pool="mean")
# Epipe trained its bottlenecks on four ranks with 64 images each, which four micro-batches are for BatchNorm.
CONV_INSERT = images(
    "CIFAR-10, learned bottlenecks",
    "cifar10-finetune",
    CIFAR10_SAMPLES,
    ("before-relu", POOLED),
    chunks=4,
    lr=0.01,
    momentum=0.9,
)
CIFAR100 = images("CIFAR-100", "cifar100-finetune", CIFAR100_SAMPLES)
FOOD101 = images("Food-101", "food101-finetune", FOOD101_SAMPLES)
SCRATCH = images(
    "CIFAR-10 from scratch, 32 pixels", "cifar10-scratch", CIFAR10_SAMPLES, ("before-norm", POOLED, "two-and-two")
)

RTE = texts("RTE", "rte", "accuracy", RTE_SAMPLES)
COLA = texts("CoLA", "cola", "mcc", COLA_SAMPLES)
COLA_SIMULATED = replace(
    texts("CoLA, as simulated", "cola-simulated", "mcc", COLA_SAMPLES), cuts=("condition-4", POOLED)
)

COLA_OWN = replace(COLA, label="Epipe's settings", prefix="cola")
COLA_FAIRSEQ = replace(texts("fairseq's settings", "cola-fairseq", "mcc", COLA_SAMPLES), prefix="cola-fairseq")
COLA_LORA = replace(texts("LoRA, its authors' settings", "cola-lora", "mcc", COLA_SAMPLES), prefix="cola-lora")
