"""The rows of torchgpipe's benchmark page, by name and as data: what each trains, how it is cut, what was published.

Published figures are torchgpipe's authors', on eight Tesla P40 of 24 GB with PyTorch 1.3. All train in float32 on
random data that is on the device already, with cuDNN's autotuning off and BatchNorm not deferred. What GPipe's paper
(Huang et al.) has for the same rows is beside them, as on that page.

Three kinds of rows are ours. "-cheap": pipeline-1, where a recomputation repeats only what is cheap. "-torchgpipe": run
by torchgpipe. "-in-place": any row of a U-Net, with activations in place, which the published rows do not have.
"""

from __future__ import annotations

from dataclasses import replace

from thinpipe.bench.table import Huang, Mode, Published, Row, Table

CARD = 22.0
"""GiB of a published card that a program can use. What has no pipeline is limited to it, as cuDNN works in whatever is
free; the stages of a pipeline share a GPU here, and are not."""


def _memory(parameters: str, total: float) -> Published:
    return Published(parameters=parameters, total=total)


def _memory_apart(parameters: str, model: float, activations: float | None) -> Published:
    return Published(parameters=parameters, model=model, activations=activations)


def _speed(throughput: float, speedup: float) -> Published:
    return Published(throughput=throughput, speedup=speedup)


def _huang_memory(parameters: str, model: str, activations: str) -> Huang:
    return Huang(parameters=parameters, model=model, activations=activations)


def _both_ways(*rows: Row) -> tuple[Row, ...]:
    """Puts each row of a U-Net beside the same one with activations in place, of which nothing was published."""
    return tuple(
        way
        for row in rows
        for way in (row, replace(row, name=f"{row.name}-in-place", in_place=True, published=Published()))
    )


UNET_MEMORY = Table(
    bench="unet-memory",
    title="U-Net (B, C), memory",
    network="unet",
    pixels=192,
    rows=_both_ways(
        Row(name="baseline", sizes=(6, 72), batch=32, limit=CARD, published=_memory("362.2M", 20.3)),
        Row(name="pipeline-1", sizes=(11, 128), batch=32, chunks=32, balance=(505,), published=_memory("2.21B", 20.5)),
        Row(
            name="pipeline-2",
            sizes=(24, 128),
            batch=32,
            chunks=32,
            balance=(526, 551),
            published=_memory("4.99B", 43.4),
        ),
        Row(
            name="pipeline-4",
            sizes=(24, 160),
            batch=32,
            chunks=32,
            balance=(472, 54, 36, 515),
            published=_memory("7.80B", 79.1),
        ),
        # torchgpipe recomputes all of 32 micro-batches when 128 were asked for, since the last of 128 never comes.
        Row(
            name="pipeline-8",
            sizes=(48, 160),
            batch=32,
            chunks=128,
            balance=(800, 140, 62, 36, 36, 36, 36, 987),
            checkpoint="always",
            published=_memory("15.82B", 154.1),
        ),
    ),
)

AMOEBANET_MEMORY = Table(
    bench="amoebanet-memory",
    title="AmoebaNet-D (L, D), memory",
    network="amoebanetd",
    pixels=224,
    optimizer="rmsprop",
    copies=3,
    rows=(
        Row(
            name="baseline",
            sizes=(18, 208),
            batch=128,
            limit=CARD,
            published=_memory_apart("81.5M", 0.91, None),
            huang=_huang_memory("82M", "1.05GB", "6.26GB"),
        ),
        Row(
            name="pipeline-1",
            sizes=(18, 416),
            batch=128,
            chunks=128,
            balance=(24,),
            published=_memory_apart("319.0M", 3.57, 0.91),
            huang=_huang_memory("318M", "3.8GB", "3.46GB"),
        ),
        Row(
            name="pipeline-2",
            sizes=(18, 544),
            batch=128,
            chunks=128,
            balance=(16, 8),
            published=_memory_apart("542.7M", 6.07, 3.39),
            huang=_huang_memory("542M", "6.45GB", "8.11GB"),
        ),
        Row(
            name="pipeline-4",
            sizes=(36, 544),
            batch=128,
            chunks=128,
            balance=(16, 12, 7, 7),
            published=_memory_apart("1.06B", 11.8, 6.91),
            huang=_huang_memory("1.05B", "12.53GB", "15.21GB"),
        ),
        Row(
            name="pipeline-8",
            sizes=(72, 512),
            batch=128,
            chunks=128,
            balance=(23, 16, 11, 6, 6, 5, 5, 6),
            published=_memory_apart("1.84B", 20.62, 10.83),
            huang=_huang_memory("1.8B", "24.62GB", "26.24GB"),
        ),
    ),
)

_UNET = (5, 64)

UNET_SPEED = Table(
    bench="unet-speed",
    title="U-Net (5, 64), speed",
    network="unet",
    pixels=192,
    dataset=10_000,
    rows=_both_ways(
        Row(name="baseline", sizes=_UNET, batch=40, published=_speed(28.500, 1)),
        Row(name="pipeline-1", sizes=_UNET, batch=80, chunks=2, balance=(241,), published=_speed(24.456, 0.858)),
        Row(name="pipeline-1-cheap", sizes=_UNET, batch=80, chunks=2, balance=(241,), recompute="cheap"),
        Row(name="pipeline-1-torchgpipe", sizes=_UNET, batch=80, chunks=2, balance=(241,), rival=True),
        Row(name="pipeline-2", sizes=_UNET, batch=512, chunks=32, balance=(104, 137), published=_speed(35.502, 1.246)),
        Row(
            name="pipeline-4",
            sizes=_UNET,
            batch=512,
            chunks=16,
            balance=(30, 66, 84, 61),
            published=_speed(67.042, 2.352),
        ),
        Row(
            name="pipeline-8",
            sizes=_UNET,
            batch=640,
            chunks=40,
            balance=(16, 27, 31, 44, 22, 57, 27, 17),
            published=_speed(88.497, 3.105),
        ),
    ),
)

RESNET_SPEED = Table(
    bench="resnet-speed",
    title="ResNet-101, speed",
    network="resnet101",
    pixels=224,
    dataset=50_000,
    rows=(
        Row(name="baseline", batch=118, published=_speed(95.862, 1), huang=Huang(speedup="1x")),
        Row(
            name="pipeline-1",
            batch=220,
            chunks=2,
            balance=(370,),
            published=_speed(81.796, 0.853),
            huang=Huang(speedup="0.80x"),
        ),
        Row(name="pipeline-1-cheap", batch=220, chunks=2, balance=(370,), recompute="cheap"),
        Row(name="pipeline-1-torchgpipe", batch=220, chunks=2, balance=(370,), rival=True),
        Row(
            name="pipeline-2",
            batch=25_000,
            chunks=1667,
            balance=(135, 235),
            published=_speed(135.539, 1.414),
            huang=Huang(speedup="1.42x"),
        ),
        Row(
            name="pipeline-4",
            batch=5632,
            chunks=256,
            balance=(44, 92, 124, 110),
            published=_speed(265.958, 2.774),
            huang=Huang(speedup="2.18x"),
        ),
        Row(
            name="pipeline-8",
            batch=5400,
            chunks=150,
            balance=(26, 22, 33, 44, 44, 66, 66, 69),
            published=_speed(411.662, 4.294),
            huang=Huang(speedup="2.89x"),
        ),
    ),
)


def _cell(
    name: str,
    batch: int,
    chunks: int,
    balance: tuple[int, ...],
    published: Published,
    huang: str,
    checkpoint: Mode = "except_last",
) -> Row:
    return Row(
        name=name,
        sizes=(18, 256),
        batch=batch,
        chunks=chunks,
        balance=balance,
        published=published,
        huang=Huang(speedup=huang),
        checkpoint=checkpoint,
    )


AMOEBANET_SPEED = Table(
    bench="amoebanet-speed",
    title="AmoebaNet-D (18, 256), speed",
    network="amoebanetd",
    pixels=224,
    dataset=10_000,
    reference="n2m1",
    rows=(
        _cell("n2m1", 96, 1, (7, 17), _speed(26.733, 1), "1x", "always"),
        _cell("n2m4", 256, 4, (9, 15), _speed(41.133, 1.539), "1.07x"),
        _cell("n2m32", 1280, 32, (9, 15), _speed(47.386, 1.773), "1.21x"),
        _cell("n4m1", 160, 1, (3, 4, 5, 12), _speed(26.827, 1.004), "1.13x", "always"),
        _cell("n4m4", 360, 4, (3, 6, 7, 8), _speed(44.543, 1.666), "1.26x"),
        _cell("n4m32", 1152, 32, (3, 6, 7, 8), _speed(72.412, 2.709), "1.84x"),
        _cell("n8m1", 196, 1, (2, 2, 2, 2, 2, 3, 4, 7), _speed(24.918, 0.932), "1.38x", "always"),
        _cell("n8m4", 480, 4, (2, 2, 2, 3, 3, 4, 4, 4), _speed(70.065, 2.621), "1.72x"),
        _cell("n8m32", 1280, 32, (2, 2, 2, 3, 3, 4, 4, 4), _speed(132.413, 4.953), "3.48x"),
    ),
)


_STAGES = Row(name="thinpipe", sizes=_UNET, batch=128, chunks=8, balance=(34, 76, 70, 61))


def _ablation(name: str, throughput: float, utilization: float, total: float) -> Row:
    return replace(_STAGES, name=name, published=Published(throughput=throughput, utilization=utilization, total=total))


UNET_TIMELINE = Table(
    bench="unet-timeline",
    title="U-Net (5, 64) on four devices, timeline",
    network="unet",
    pixels=192,
    dataset=2048,
    rows=(
        _ablation("baseline", 30.662, 0.44, 52.2),
        _ablation("dep-x-x", 41.306, 0.59, 19.1),
        _ablation("dep-str-x", 55.191, 0.71, 30.0),
        _ablation("dep-str-ptl", 58.477, 0.75, 23.5),
        *_both_ways(_STAGES),
    ),
)

TABLES = (UNET_MEMORY, AMOEBANET_MEMORY, UNET_SPEED, AMOEBANET_SPEED, RESNET_SPEED, UNET_TIMELINE)

ACCURACY = {
    "256": ("21.99±0.13", "22.02±0.11", "22.08±0.06"),
    "1K": ("22.24±0.19", "22.04±0.24", "N/A"),
    "4K": ("22.13±0.09", "N/A", "N/A"),
}
"""Published top-1 errors of ResNet-101 on ImageNet in percent, by batch: torchgpipe, DataParallel, Goyal et al."""
