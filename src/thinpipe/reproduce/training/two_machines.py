"""Training between a client and a server: Epipe's accuracies, its micro-batches, and codecs of ours beside them."""

from __future__ import annotations

from dataclasses import replace

from thinpipe.reproduce.training.table import NONE, POOLED, Learned, Published, Row, Table, Work
from thinpipe.reproduce.training.works import CIFAR10_SAMPLES, images
from thinpipe.reproduce.two_machines.documents import CHUNKS, CONV, CUT, PRINTED, Printed, training
from thinpipe.reproduce.two_machines.row import method

_TINY = dict(zip(CONV.values(), ("conv:12k2s2/conv:18", "conv:10k2s2/conv:16"), strict=True))
"""For digits."""
_OURS, _OURS_IN = ("wave:4", "had:4"), 4
_MOVED = "from a row that is printed with 4 chunks, where the charts beside it have it at 8"


def _work(chunks: int) -> Work:
    label = "1 micro-batch" if chunks == 1 else f"{chunks} micro-batches"
    work = images(f"CIFAR-10 in {label}", "cifar10-finetune", CIFAR10_SAMPLES, (CUT, POOLED), **training(chunks))
    return replace(work, tiny=dict(work.tiny) | {"chunks": chunks}, prefix=f"chunks{chunks}")


def _published(row: Printed) -> Row:
    learned = None if row.bottleneck == NONE else Learned(text=row.bottleneck, tiny=_TINY[row.bottleneck])
    note = _MOVED if row.codec != NONE and row.chunks == CHUNKS[-1] else ""
    return Row(
        work=_WORKS[row.chunks],
        codec=row.codec,
        series=method(row.codec, row.bottleneck).partition(":")[0],
        published=Published(value=round(row.accuracy / 100, 4), ratio=row.ratio, note=note),
        learned=learned,
    )


_WORKS = {chunks: _work(chunks) for chunks in CHUNKS}

ACCURACY = Table(
    name="two-machines-accuracy",
    title="Two machines, accuracy, MobileNetV2 on CIFAR-10",
    about="accuracy on CIFAR-10 of a client that trains with a server",
    rows=(
        *map(_published, PRINTED),
        *(Row(work=_WORKS[_OURS_IN], codec=codec, series=codec.partition(":")[0]) for codec in _OURS),
    ),
    source=(
        "Published figures are from Epipe's report on two machines. Its settings: SGD at 0.005 for each micro-batch, "
        "whose gradients it sums; momentum 0.1 as the report says, where the code that made the figures has none. "
        "Ours train with that momentum; --set momentum=0 trains as the code does. Bottlenecks of ours are fitted to "
        "the first batches by the client, and both sides begin with the fit. Client and server are two processes of "
        "one host; the same stages in one process come to the same accuracy. The bytes are those of training alone."
    ),
    needs="thinpipe\\[data,net]; CIFAR-10, and ImageNet weights of MobileNetV2; a GPU",
    time="estimated: 1 to 3 hours a row with a recent GPU; --tiny: 10 seconds a row",
    served=True,
)
