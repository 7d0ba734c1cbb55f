"""Pruning, quantization and downsampling, trained from scratch at 32 pixels: Epipe's "Gpipe with compression tests".

Beside both of its plots a small table shows what its network has to do with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from thinpipe.reproduce.training.table import NONE, Published, Row, Table
from thinpipe.reproduce.training.works import CIFAR10_SAMPLES, SCRATCH, images


def _rows(series: str, figures: Mapping[str, tuple[float, float | None]]) -> tuple[Row, ...]:
    """Makes rows of a line in the plot: for each codec its ratio and its accuracy."""
    return tuple(
        Row(work=SCRATCH, codec=codec, series=series, published=Published(value=value, ratio=ratio))
        for codec, (ratio, value) in figures.items()
    )


PRUNE_VS_QUANT = Table(
    name="prune-vs-quant",
    title="Pruning and quantization, MobileNetV2 on CIFAR-10 from scratch",
    about="accuracy from scratch: top-k, uniform, both, downsampling, our codecs",
    rows=(
        *_rows(NONE, {NONE: (1.0, 0.9349)}),
        *_rows(
            "prune",
            {
                "topk:0.05": (0.05, 0.8815),
                "topk:0.1": (0.1, 0.909),
                "topk:0.2": (0.2, 0.9337),
                "topk:0.4": (0.4, 0.9353),
                "topk:0.6": (0.6, 0.9387),
                "topk:0.8": (0.8, 0.9376),
            },
        ),
        *_rows(
            "uniform",
            {
                "uniform:4": (0.125, 0.9215),
                "uniform:6": (0.1875, 0.9307),
                "uniform:8": (0.25, 0.9334),
                "uniform:16": (0.5, 0.9354),
            },
        ),
        *_rows("downsample", {"downsample:4": (0.0625, 0.905), "downsample:2": (0.25, 0.9328)}),
        *_rows(
            "prune, 8 bits",
            {
                "topk:0.05|uniform:8": (0.0125, 0.8877),
                "topk:0.1|uniform:8": (0.025, 0.9203),
                "topk:0.2|uniform:8": (0.05, 0.9287),
                "topk:0.4|uniform:8": (0.1, None),
            },
        ),
        *_rows("prune, 16 bits", {"topk:0.1|uniform:16": (0.05, 0.910), "topk:0.2|uniform:16": (0.1, 0.9233)}),
        Row(work=SCRATCH, codec="block:4", series="block"),
        Row(work=SCRATCH, codec="block:2/32", series="block"),
        Row(work=SCRATCH, codec="had:4", series="had"),
        Row(work=SCRATCH, codec="had:2", series="had"),
        Row(work=SCRATCH, codec="wave:4", series="wave"),
        Row(work=SCRATCH, codec="wave:2", series="wave"),
        Row(work=SCRATCH, codec="wave:0.6", series="wave"),
    ),
    source='Published figures are read off the first plot of Epipe\'s "Gpipe with compression tests", by eye. '
    "Their ratio is the share of numbers that are kept, times bits over 32, as if nothing had to say which ones; "
    "ours counts that, too. Its text says that quantization raises the accuracy of topk:0.05 and topk:0.1, and not of "
    "topk:0.2 and topk:0.4. In its second plot, by epoch, the accuracy of uniform:4 and uniform:8 swings between "
    "about 10 and 90 % until epoch 130, and with pruning it does not.",
    needs="thinpipe\\[data]; CIFAR-10; a GPU",
    time="estimated for an H200: an hour or more a row; --tiny: 20 seconds",
    curves=(NONE, "uniform:4", "uniform:8", "topk:0.1|uniform:8", "topk:0.2|uniform:8"),
)

_PART = {"limit": 2048, "batch": 64, "chunks": 1, "lr": 0.025, "epochs": 5, "warmup": 1.0}
_SMALL = images("small CIFAR-10 from scratch", "cifar10-scratch", CIFAR10_SAMPLES, ("before-norm",), **_PART)
_RELU6 = replace(
    images(
        "small CIFAR-10 from scratch, ReLU6 behind the first cut",
        "cifar10-scratch",
        CIFAR10_SAMPLES,
        ("before-relu",),
        **_PART,
        model="mobilenet_v2_32px",
    ),
    prefix="relu6",
)

PRUNE_SMALL = Table(
    name="prune-vs-quant-small",
    title="Quantization and pruning on few images, from scratch",
    about="the same on 2,048 images, minutes on a CPU, in two networks",
    rows=tuple(
        Row(work=work, codec=codec, series=", ".join(filter(None, (codec, work.prefix))))
        for work in (_SMALL, _RELU6)
        for codec in (NONE, "uniform:8", "uniform:4", "topk:0.8", "topk:0.8|uniform:8")
    ),
    source="Nothing like it was published: a part of the data for a few epochs, to compare rows with each other.",
    needs="thinpipe\\[data]; CIFAR-10",
    time="four minutes a row and seed on one of 2 cores; --tiny: 10 seconds",
    by_epoch=True,
)
