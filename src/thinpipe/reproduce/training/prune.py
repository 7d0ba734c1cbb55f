"""Pruning, quantization and downsampling, trained from scratch at 32 pixels: Epipe's first plot."""

from __future__ import annotations

from thinpipe.reproduce.training.table import NONE, Published, Row, Table
from thinpipe.reproduce.training.works import SCRATCH


def _rows(series: str, figures: dict[str, tuple[float, float]]) -> tuple[Row, ...]:
    """Makes rows of a line in the plot: for each codec its ratio and its accuracy."""
    return tuple(
        Row(work=SCRATCH, codec=codec, series=series, published=Published(value=value, ratio=ratio))
        for codec, (ratio, value) in figures.items()
    )


PRUNE_VS_QUANT = Table(
    name="prune-vs-quant",
    title="Pruning and quantization, MobileNetV2 on CIFAR-10 from scratch",
    about="accuracy from scratch at 32 pixels: top-k pruning, uniform quantization, both, downsampling, our codecs",
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
    "ours counts that, too.",
    needs="thinpipe\\[data]; CIFAR-10; a GPU",
    time="H200, five rows at a time, --epochs 10: 2 to 9 minutes a row; estimated: an hour for 200 epochs; --tiny: "
    "20 seconds",
)
