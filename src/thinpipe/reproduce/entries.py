"""The tables that can be measured anew, by the names of their commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from thinpipe.bench.data_parallel_command import data_parallel_command
from thinpipe.bench.memory_command import amoebanet_memory_command, unet_memory_command
from thinpipe.bench.speed_command import amoebanet_speed_command, resnet_speed_command, unet_speed_command
from thinpipe.bench.timeline_command import unet_timeline_command
from thinpipe.bench.transparency_command import transparency_command
from thinpipe.bench.versus_command import versus_command
from thinpipe.reproduce.training.command import training_command
from thinpipe.reproduce.training.tables import TABLES
from thinpipe.reproduce.two_machines.command import two_machines_command


@dataclass(frozen=True)
class Entry:
    """A table that can be measured anew.

    Args:
        name: of the command.
        command: what measures it.
        about: what it shows.
        needs: what it takes.
        time: about how long it takes.
    """

    name: str
    command: Callable[..., None]
    about: str
    needs: str
    time: str


_GPUS = "as many GPUs as a row has stages, or one for all; --devices cpu:N for cores"
_MINUTES = "estimated: minutes a row; --tiny: seconds"

ENTRIES = (
    *(Entry(each.name, training_command(each), each.about, each.needs, each.time) for each in TABLES.values()),
    Entry(
        "dp-vs-pipeline",
        versus_command,
        "throughput and bytes of pipelines, torchgpipe and data parallel processes",
        "as many cores as processes, or GPUs; 30 GB for RoBERTa on four; thinpipe\\[hf,bench]",
        "estimated: 2 hours on 4 cores, with --divide 4 half an hour; --tiny: 3 minutes on 2 cores",
    ),
    Entry(
        "data-parallel",
        data_parallel_command,
        "where the time of a data parallel step goes, by SGD and by AdamW",
        "as many cores as processes, or GPUs; transformers for RoBERTa",
        "estimated: half an hour on 4 cores; --tiny: 2 minutes on 2 cores",
    ),
    Entry(
        "two-machines",
        two_machines_command,
        "bytes, bandwidth and time of a batch between a client and a server, by codec or learned bottleneck",
        "thinpipe\\[net]; a GPU for the server, or patience",
        "estimated: 5 minutes a link with a GPU and 16 cores, 25 at 100 Mbit/s; --tiny: half a minute",
    ),
    Entry("unet-memory", unet_memory_command, "torchgpipe's: peak memory of U-Nets", _GPUS, _MINUTES),
    Entry("amoebanet-memory", amoebanet_memory_command, "torchgpipe's: peak memory of AmoebaNet-D", _GPUS, _MINUTES),
    Entry("unet-speed", unet_speed_command, "torchgpipe's: throughput of a U-Net", _GPUS, _MINUTES),
    Entry("amoebanet-speed", amoebanet_speed_command, "torchgpipe's: throughput of AmoebaNet-D", _GPUS, _MINUTES),
    Entry("resnet-speed", resnet_speed_command, "torchgpipe's: throughput of ResNet-101", _GPUS, _MINUTES),
    Entry("unet-timeline", unet_timeline_command, "torchgpipe's: how busy four devices are", _GPUS, _MINUTES),
    Entry(
        "transparency",
        transparency_command,
        "torchgpipe's: test error with and without a pipe",
        "nothing; CIFAR-10 and a GPU for ResNet-18",
        "estimated: a minute on 2 cores, with ResNet-18 hours; --tiny: seconds",
    ),
)
