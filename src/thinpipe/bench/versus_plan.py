"""What a row of ``thinpipe bench pipeline-vs-dp`` measures: variants, each with a batch of its own, and their settings.

::

    MobileNetV2, 2 processes, Epipe's rows:   ddp-2-b128  client-b64-c4  torchgpipe-b64-c4  halves-b64-c4
    data parallel with a pipeline's batch:           ddp-2-b64
    with a codec at the cuts:                                    client-b64-c4+wave:4              halves-b64-c4+wave:4
    one process:                                     alone-b64
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from thinpipe.bench.documents import DDP, TORCHGPIPE, base_of, compared
from thinpipe.bench.shapes import MOBILENET, Shape
from thinpipe.bench.versus_cut import Manner, is_known
from thinpipe.codecs.catalogue import DEFAULT

ALONE, PIPELINE = "alone", "pipeline"
PIPELINES = (*map(str, Manner), TORCHGPIPE)
"""The pipelines that can be asked for by name."""
NONE = "none"
CODEC = DEFAULT
_BETWEEN = re.compile(r"[,/|]")


@dataclass(frozen=True)
class Variant:
    """One way to train a batch.

    Args:
        way: ``alone``, ``ddp``, ``pipeline`` or ``torchgpipe``.
        rows: of the batch, all processes together.
        processes: how many take part (default: 1).
        chunks: micro-batches (default: 1).
        cut: of a pipeline (default: there is none).
        codec: at the cuts (default: tensors cross as they are).
    """

    way: str
    rows: int
    processes: int = 1
    chunks: int = 1
    cut: str = ""
    codec: str | None = None

    @property
    def name(self) -> str:
        """All that tells it from the others of a row."""
        if self.way == ALONE:
            return f"{ALONE}-b{self.rows}"
        if self.way == DDP:
            return f"{DDP}-{self.processes}-b{self.rows}"
        codec = "" if self.codec is None else f"+{self.codec}"
        return f"{TORCHGPIPE if self.way == TORCHGPIPE else self.cut}-b{self.rows}-c{self.chunks}{codec}"

    @property
    def published_way(self) -> str | None:
        """The way of Epipe's that it is; None if it is none of theirs."""
        if self.way == PIPELINE:
            return self.cut if self.codec is None and not Manner(self.cut).is_timed else None
        return None if self.way == ALONE else self.way


@dataclass(frozen=True)
class Training:
    """How all variants of a row train; the defaults are Epipe's.

    Args:
        schedule: of pipelines (default: ``gpipe``, fill and drain).
        pipeline_momentum: of pipelines' SGD (default: 0).
        ddp_momentum: of the SGD of data parallel training, and of one process (default: 0.9).
        synced: whether BatchNorm has the statistics of all data parallel processes together (default: each process has
            those of its own rows).
    """

    schedule: str = "gpipe"
    pipeline_momentum: float = 0.0
    ddp_momentum: float = 0.9
    synced: bool = False

    @property
    def parts(self) -> list[str]:
        """What is not as Epipe has it, for the name of a row."""
        usual = Training()
        return [
            *([self.schedule] if self.schedule != usual.schedule else []),
            *([f"momentum{self.pipeline_momentum:g}"] if self.pipeline_momentum != usual.pipeline_momentum else []),
            *([f"ddp-momentum{self.ddp_momentum:g}"] if self.ddp_momentum != usual.ddp_momentum else []),
            *(["synced"] if self.synced else []),
        ]


@dataclass(frozen=True)
class Plan:
    """A row.

    Args:
        shape: the model.
        processes: how many.
        variants: what is timed.
        base: the variant that speed-ups are over: data parallel training by two processes.
        label: what batches are, Epipe's or one that was asked for, and pipelines if they were asked for.
        divided: what Epipe's batches were divided by (default: 1).
        training: how all train (default: as Epipe).
        device: ``cpu``, or ``cuda``, which processes share if there are more of them than GPUs (default: ``cpu``).
        threads: of each process, and cores (default: 1).
        rounds: how often each variant is timed (default: 3).
        profile_seconds: about how long to measure the units of the model, for cuts by time (default: 2).
        seed: of weights and data (default: 0).
    """

    shape: Shape
    processes: int
    variants: tuple[Variant, ...]
    base: Variant
    label: str
    divided: int = 1
    training: Training = field(default_factory=Training)
    device: str = "cpu"
    threads: int = 1
    rounds: int = 3
    profile_seconds: float = 2.0
    seed: int = 0

    @property
    def name(self) -> str:
        """The row: all that may differ between two of them, so that none takes the place of another's record."""
        codecs = dict.fromkeys(each.codec or NONE for each in self.variants if each.way == PIPELINE)
        parts = [
            f"{self.shape.name}-{self.processes}",
            self.label,
            *([f"by{self.divided}"] if self.divided > 1 else []),
            *(_BETWEEN.sub("-", codec.replace(":", "")) for codec in codecs if codec not in (NONE, CODEC)),
            *([NONE] if list(codecs) == [NONE] else []),
            *self.training.parts,
            *self.shape.parts,
            *([f"{self.threads}threads"] if self.threads > 1 else []),
            *([f"seed{self.seed}"] if self.seed else []),
            *([self.device] if self.device != "cpu" else []),
        ]
        return "-".join(parts)

    def settings(self) -> dict[str, Any]:
        """Lists what a record must say of the plan."""
        return {
            "processes": self.processes,
            "label": self.label,
            "divided": self.divided,
            "base": self.base.name,
            **vars(self.training),
            "device": self.device,
            "threads": self.threads,
            "rounds": self.rounds,
            "profile_seconds": self.profile_seconds,
            "seed": self.seed,
            "variants": {each.name: vars(each) for each in self.variants},
        }


def documents_variants(
    model: str, processes: int, *, divided: int = 1, pipelines: Sequence[str] | None = None, codec: str | None = None
) -> tuple[Variant, ...]:
    """Lists what Epipe compared with so many processes, and what it takes to compare it.

    Args:
        model: its name.
        processes: how many.
        divided: by what their batches are divided (default: 1).
        pipelines: which, each with all of their batches (default: theirs).
        codec: at the cuts of pipelines beside those without (default: no such ones).

    Returns:
        Nothing if they have no such rows.
    """
    rows = compared(model, processes)
    if not rows:
        return ()
    own = [row for row in rows if row.way != DDP]
    if pipelines is None:
        piped = [_pipeline(row.way, row.batch // divided, processes, row.chunks) for row in own]
    else:
        sizes = dict.fromkeys((row.batch // divided, row.chunks) for row in own)
        piped = [_pipeline(way, batch, processes, chunks) for way in pipelines for batch, chunks in sizes]
    ddp = [Variant(DDP, row.batch // divided, processes) for row in rows if row.way == DDP]
    base = Variant(DDP, base_of(model).batch // divided, 2)
    return _complete([base, *ddp], piped, codec)


def own_variants(
    processes: int, rows: int, chunks: int, *, pipelines: Sequence[str], codec: str | None = None
) -> tuple[Variant, ...]:
    """Lists what there is to compare with one batch for all."""
    piped = [_pipeline(way, rows, processes, chunks) for way in pipelines]
    return _complete([Variant(DDP, rows, 2)], piped, codec)


def refusal(variants: Iterable[Variant], model: str) -> str | None:
    """Says why variants cannot be trained; None if they can."""
    for each in variants:
        if each.way == DDP and each.rows % each.processes:
            return (
                f"{each.rows} rows are not the same share for {each.processes} processes; "
                f"write --batch {each.rows + -each.rows % each.processes}"
            )
        if each.way == TORCHGPIPE and model != MOBILENET:
            return f"torchgpipe cuts an nn.Sequential, which {model} is not; leave it out of --pipelines"
        cut = each.cut
        if cut and not is_known(Manner(cut), model, each.processes):
            return (
                f"Epipe has no cut {cut!r} of {model} for {each.processes} processes; "
                f"write --pipelines {Manner.CLIENT_TIMED},{Manner.EVEN_TIMED}"
            )
    return None


def _pipeline(way: str, rows: int, processes: int, chunks: int) -> Variant:
    if way == TORCHGPIPE:
        return Variant(TORCHGPIPE, rows, processes, chunks, str(Manner.CLIENT))
    return Variant(PIPELINE, rows, processes, chunks, way)


def _complete(ddp: Sequence[Variant], piped: Sequence[Variant], codec: str | None) -> tuple[Variant, ...]:
    """Adds one process alone, data parallel training with every pipeline's batch, and pipelines with a codec."""
    equal = [Variant(DDP, each.rows, each.processes) for each in piped]
    packed = [
        Variant(PIPELINE, each.rows, each.processes, each.chunks, each.cut, codec)
        for each in piped
        if codec is not None and each.way == PIPELINE
    ]
    alone = Variant(ALONE, min(each.rows for each in (*ddp, *piped)))
    return tuple(dict.fromkeys((alone, *ddp, *equal, *piped, *packed)))
