"""Sort quantization at Epipe's step on a small part of CIFAR-10, which two CPU cores train in minutes a row.

Beside it the same with another step, to see what decides whether quantization costs accuracy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thinpipe.reproduce.training.sortquant import own, rows_of
from thinpipe.reproduce.training.table import NONE, Published, Row, Table
from thinpipe.reproduce.training.works import CIFAR10_SAMPLES, images

_PART: dict[str, Any] = {"pixels": 64, "pool": "mean", "limit": 4000, "epochs": 12, "warmup": 2.0}
_SMALL = images("small CIFAR-10", "cifar10-finetune", CIFAR10_SAMPLES, **_PART)
_ONE = images("small CIFAR-10, one micro-batch", "cifar10-finetune", CIFAR10_SAMPLES, **_PART, chunks=1)
_MOMENTUM = images(
    "small CIFAR-10, one micro-batch, momentum 0.9",
    "cifar10-finetune",
    CIFAR10_SAMPLES,
    **_PART,
    chunks=1,
    lr=0.01,
    momentum=0.9,
)
_STEPS = (replace(_ONE, prefix="one"), replace(_MOMENTUM, prefix="momentum"))

SMALL = Table(
    name="sortquant-cifar10-small",
    title="Sort quantization on few images",
    about="accuracy on 4,000 images, minutes on a CPU, at several steps",
    rows=(
        *rows_of(
            _SMALL,
            Published(),
            (Published(),) * 4,
            *((f"uniform:{bits}", "uniform", Published()) for bits in (16, 12, 8, 4)),
            ours=own("had:4", "wave:4", "wave:2", "wave:0.6"),
        ),
        *(
            Row(work=work, codec=codec, series=codec.partition(":")[0])
            for work in _STEPS
            for codec in (NONE, "sort:6+2", "sort:3+1", "wave:4")
        ),
    ),
    source="Nothing like it was published: a part of the data at a fourteenth of the pixels, to compare rows with each "
    "other.",
    needs="thinpipe\\[data]; CIFAR-10, and ImageNet weights of MobileNetV2",
    time="four minutes a row and seed on 2 cores; --tiny: 10 seconds",
)
