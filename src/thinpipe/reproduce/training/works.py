"""What Epipe trained, in its settings: recipes, cut where it cut them, batches in its micro-batches.

With ``--tiny`` images are the handwritten digits that come with scikit-learn, texts are made up, and models are small.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thinpipe.reproduce.training.table import Measure, Work

_DIGITS: dict[str, Any] = {"batch": 128, "chunks": 2, "epochs": 3}
_TEXTS: dict[str, Any] = {
    "model": "tiny",
    "max_length": 16,
    "batch": 16,
    "chunks": 2,
    "epochs": 2,
    "lr": 1e-2,
    "precision": "float32",
}


def _images(label: str, recipe: str, samples: tuple[int, int], **changes: Any) -> Work:
    return Work(label=label, recipe=recipe, samples=samples, changes=changes, tiny_recipe="digits", tiny=_DIGITS)


def _texts(label: str, recipe: str, measure: Measure, samples: tuple[int, int], **changes: Any) -> Work:
    return Work(
        label=label,
        recipe=recipe,
        measure=measure,
        samples=samples,
        changes=changes,
        tiny_recipe=recipe,
        tiny=_TEXTS,
    )


CIFAR10 = _images("CIFAR-10", "cifar10-finetune", (50_000, 10_000), chunks=8)
CIFAR100 = _images("CIFAR-100", "cifar100-finetune", (50_000, 10_000), chunks=8)
FOOD101 = _images("Food-101", "food101-finetune", (75_750, 25_250), chunks=8)
SCRATCH = _images("CIFAR-10 from scratch, 32 pixels", "cifar10-scratch", (50_000, 10_000))

_RTE, _COLA = (2_490, 277), (8_551, 1_043)

# All rows of a batch are as long as Epipe had them: what fills them up crosses the cuts, too, and a codec that
# has one grid for a tensor has it for all of that.
RTE = _texts("RTE", "rte", "accuracy", _RTE, chunks=4, padding="full")
COLA = _texts("CoLA", "cola", "mcc", _COLA, chunks=4, padding="full")

COLA_OWN = replace(COLA, label="Epipe's settings", prefix="cola")
COLA_FAIRSEQ = replace(
    _texts("fairseq's settings", "cola-fairseq", "mcc", _COLA, chunks=4, padding="full"), prefix="cola-fairseq"
)
COLA_LORA = replace(
    _texts("LoRA, its authors' settings", "cola-lora", "mcc", _COLA, chunks=4, padding="full"), prefix="cola-lora"
)
