"""Short trainings at settings of our own, from before the recipes followed Epipe's: codecs compared with each other.

They say what one codec costs beside another when a network is trained for ten epochs with momentum, one grid for a
whole batch, in bfloat16. They are no measure of what sort, uniform, top-k or power iteration do as they were published.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from thinpipe.reproduce.training.ablation import ABLATION
from thinpipe.reproduce.training.bottlenecks import CONV_ROWS
from thinpipe.reproduce.training.looks import EPIPE, LOOKS
from thinpipe.reproduce.training.prune import PRUNE_VS_QUANT
from thinpipe.reproduce.training.sortquant import SORTQUANT
from thinpipe.reproduce.training.table import POOLED, Published, Row, Table, Work
from thinpipe.reproduce.training.works import (
    CIFAR10_SAMPLES,
    CIFAR100_SAMPLES,
    COLA_SAMPLES,
    FOOD101_SAMPLES,
    images,
    texts,
)

PAGE = "short-trainings"
_PASSES = re.compile(r"(power:\d+)/\d+")
_SOURCE = "Settings are our own; published figures are beside no row."
_FINE_TUNED: dict[str, Any] = {
    "batch": 256,
    "chunks": 1,
    "epochs": 10,
    "lr": 0.01,
    "momentum": 0.9,
    "precision": "bfloat16",
    "last_batch": "keep",
    "weights": "mobilenet_v2_imagenet.safetensors",
    "pool": "mean",
}
_FROM_SCRATCH: dict[str, Any] = {
    "model": "mobilenet_v2_32px",
    "batch": 256,
    "chunks": 1,
    "epochs": 10,
    "lr": 0.1,
    "warmup": 1.0,
    "precision": "bfloat16",
    "last_batch": "keep",
    "dropout": 0.2,
}
_TEXT: dict[str, Any] = {
    "batch": 32,
    "chunks": 1,
    "last_batch": "keep",
    "epochs": 8,
    "lr": 1e-4,
    "optimizer": "adamw",
    "weight_decay": 1e-4,
    "warmup": 0.06,
    "padding": "full",
    "precision": "bfloat16",
}
_CUTS = ("before-relu", POOLED)

_CIFAR10 = images("CIFAR-10", "cifar10-finetune", CIFAR10_SAMPLES, _CUTS, **_FINE_TUNED)
_CIFAR100 = images("CIFAR-100", "cifar100-finetune", CIFAR100_SAMPLES, _CUTS, **_FINE_TUNED)
_FOOD101 = images("Food-101", "food101-finetune", FOOD101_SAMPLES, _CUTS, **_FINE_TUNED | {"epochs": 20})
_SCRATCH = images("CIFAR-10 from scratch", "cifar10-scratch", CIFAR10_SAMPLES, _CUTS, **_FROM_SCRATCH)
_COLA = replace(texts("CoLA", "cola", "mcc", COLA_SAMPLES, **_TEXT), cuts=("two-and-two", POOLED))


def _rows(work: Work, rows: Iterable[Row]) -> tuple[Row, ...]:
    """Lists rows with another work and nothing published, each once; power iteration had one pass a tensor."""
    own = (replace(row, work=work, published=Published(), codec=_PASSES.sub(r"\1", row.codec)) for row in rows)
    return tuple({row.name: row for row in own}.values())


def _of(name: str) -> tuple[Row, ...]:
    return next(table.rows for table in SORTQUANT if table.name == name)


def _table(work: Work, name: str, rows: tuple[Row, ...], how: str, needs: str) -> Table:
    return Table(
        name=name,
        title=f"{how}, {work.label}",
        about=f"codecs compared on {work.label} at settings of our own, trained shortly",
        rows=_rows(work, rows),
        source=_SOURCE,
        needs=needs,
        time="H200, several rows at a time: 2 to 9 minutes a row; --tiny: 20 seconds",
        page=PAGE,
        draws=lambda row: LOOKS[row.series].shape != EPIPE,
    )


_BITS = tuple(row for row in ABLATION.rows if row.work.prefix == "cifar10" and row.series.startswith("uniform"))
_IMAGES = "thinpipe\\[data]; the data set, and ImageNet weights of MobileNetV2; a GPU"

SHORT = (
    _table(_CIFAR10, "short-cifar10", _of("sortquant-cifar10") + CONV_ROWS + _BITS, "MobileNetV2, 10 epochs", _IMAGES),
    _table(_CIFAR100, "short-cifar100", _of("sortquant-cifar100"), "MobileNetV2, 10 epochs", _IMAGES),
    _table(_FOOD101, "short-food101", _of("sortquant-food101"), "MobileNetV2, 20 epochs", _IMAGES),
    _table(
        _SCRATCH, "short-scratch", PRUNE_VS_QUANT.rows, "MobileNetV2, 10 epochs", "thinpipe\\[data]; CIFAR-10; a GPU"
    ),
    _table(
        _COLA,
        "short-cola",
        _of("sortquant-cola"),
        "MiniLM-L6, 8 epochs",
        "thinpipe\\[data,hf]; CoLA; --encoder with MiniLM-L6; a GPU",
    ),
)
