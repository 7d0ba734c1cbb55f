"""Accuracy of pipelines and of data parallel training: the column of Epipe's tables of both that is no throughput.

A data parallel process normalises and backpropagates its share of a batch as a pipeline does a micro-batch: on one
device it is one, so a row of ``k`` GPUs has ``k`` micro-batches here, and a momentum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thinpipe.reproduce.training.table import NONE, Published, Row, Table, Work
from thinpipe.reproduce.training.works import CIFAR10, RTE

_WARM_UP_STEPS, _RTE_EPOCHS, _RTE_ROWS = 500, 20, 2_490


def _row(work: Work, prefix: str, series: str, published: Published, *, batch: int, chunks: int, **changes: Any) -> Row:
    """Makes a row without a codec, which trains a work with a batch, a step and micro-batches of its own."""
    own = replace(
        work,
        label=f"{work.label}, {series}",
        prefix=prefix,
        changes={**work.changes, "batch": batch, "chunks": chunks, "last_batch": "drop", **changes},
        tiny={**work.tiny, "chunks": chunks},
    )
    return Row(work=own, codec=NONE, series=series, published=published)


def _cifar10(prefix: str, series: str, accuracy: float, deviation: float, **changes: Any) -> Row:
    return _row(CIFAR10, prefix, series, Published(value=accuracy, deviation=deviation, ratio=1.0), **changes)


def _rte(prefix: str, series: str, published: Published, **changes: Any) -> Row:
    return _row(RTE, prefix, series, published, **changes)


def _adamw(batch: int) -> dict[str, Any]:
    """Writes the optimizer of their data parallel program of RTE: PyTorch's decay, and 500 steps of warm-up."""
    steps = _RTE_EPOCHS * (_RTE_ROWS // batch)
    return {"weight_decay": 0.01, "warmup": _WARM_UP_STEPS / steps}


_SIMULATED = (
    "Data parallel rows are trained on one device, a micro-batch for each GPU: forward, BatchNorm's statistics and "
    "gradients are those of the GPUs. Running statistics move with every share of a batch, where "
    "DistributedDataParallel keeps those of its first process. `torchrun -m thinpipe train --data-parallel` with "
    "`--set batch_norm=own` trains with processes."
)
_STEP = (
    "Epipe's pipelines add up the gradients of micro-batches, each of a mean: their learning rate is written here times"
    " the number of micro-batches, and they have no momentum."
)
_SAME = "Two GPUs or four make no difference to a pipeline's numbers, so rows that differ in that alone are one."
_SOURCE = "Published figures are from the tables of pipelines and data parallel training on Epipe's main page."

CIFAR10_PIPELINES = Table(
    name="pipelines-cifar10",
    title="Pipelines and data parallel training, MobileNetV2 on CIFAR-10",
    about="accuracy on CIFAR-10 of pipelines and of data parallel training",
    rows=(
        _cifar10("ddp-2", "data parallel, 2 x 64", 0.9583, 0.0004, batch=128, chunks=2, lr=0.005, momentum=0.9),
        _cifar10(
            "pipeline-b64-c4", "pipeline, 64 in 4", 0.9589, 0.0007, batch=64, chunks=4, lr=4 * 0.005, momentum=0.0
        ),
        _cifar10(
            "pipeline-b256-c4", "pipeline, 256 in 4", 0.9603, 0.0014, batch=256, chunks=4, lr=4 * 0.02, momentum=0.0
        ),
        _cifar10(
            "pipeline-b256-c8", "pipeline, 256 in 8", 0.9607, 0.0005, batch=256, chunks=8, lr=8 * 0.02, momentum=0.0
        ),
        _cifar10("ddp-4", "data parallel, 4 x 64", 0.9594, 0.0009, batch=256, chunks=4, lr=0.02, momentum=0.9),
    ),
    source=f"{_SOURCE} {_STEP} {_SIMULATED}",
    needs="thinpipe\\[data]; CIFAR-10, and ImageNet weights of MobileNetV2; a GPU",
    time="estimated: half an hour a row and seed with a recent GPU; --tiny: 10 seconds",
    by_epoch=True,
)

RTE_PIPELINES = Table(
    name="pipelines-rte",
    title="Pipelines and data parallel training, RoBERTa-base on RTE",
    about="accuracy on RTE of pipelines and of data parallel training",
    rows=(
        _rte(
            "ddp-2",
            "data parallel, 2 x 16",
            Published(value=0.790, deviation=0.0027, ratio=1.0),
            batch=32,
            chunks=2,
            **_adamw(32),
        ),
        _rte(
            "pipeline-b32-c4",
            "pipeline, 32 in 4",
            Published(value=0.7859, deviation=0.0021, ratio=1.0),
            batch=32,
            chunks=4,
        ),
        _rte(
            "pipeline-b64-c4",
            "pipeline, 64 in 4",
            Published(value=0.7756, upto=0.7817, ratio=1.0, note="77.56 ± 0.39 on two GPUs, and 78.17 ± 0.44 on four"),
            batch=64,
            chunks=4,
            lr=4e-5,
        ),
        _rte(
            "pipeline-b64-c2",
            "pipeline, 64 in 2",
            Published(value=0.7815, deviation=0.0022, ratio=1.0),
            batch=64,
            chunks=2,
            lr=4e-5,
        ),
        _rte(
            "ddp-4",
            "data parallel, 4 x 16",
            Published(value=0.784, deviation=0.0021, ratio=1.0),
            batch=64,
            chunks=4,
            lr=4e-5,
            **_adamw(64),
        ),
    ),
    source=f"{_SOURCE} {_SAME} Data parallel rows are trained on one device, a micro-batch for each GPU, with a weight "
    "decay of 0.01 and 500 steps of warm-up, as by Epipe's program; pipelines have no decay, and warm up for a tenth.",
    needs="thinpipe\\[data,hf]; RTE; RoBERTa-base, or --encoder; a GPU",
    time="estimated: 15 minutes a row and seed with a recent GPU; --tiny: 15 seconds",
    by_epoch=True,
)

PIPELINES = (CIFAR10_PIPELINES, RTE_PIPELINES)
