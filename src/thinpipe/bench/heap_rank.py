"""A process that trains on a CPU and keeps its memory or does not; run as a module, with its ``Work`` as the argument.

It says a line of JSON when it is ready, and one for every line that it reads, after another step. It ends with its
input.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

import torch
from torch.nn import functional

from thinpipe.bench.rank_life import Say, live
from thinpipe.cutting import split
from thinpipe.runtime.heap import keep_memory
from thinpipe.runtime.pipe import Pipe
from thinpipe.train.networks import NETWORKS

_NETWORK, _CUT, _PIXELS, _CLASSES = "mobilenet_v2_32px", "before-relu", 32, 10
_KIB = 1024


@dataclass(frozen=True)
class Work:
    """What a process does.

    Args:
        kept: whether it keeps its memory.
        batch: images of a step.
        codec: packs what crosses the two cuts, both ways (None: nothing is cut).
        seed: of weights and data.
    """

    kept: bool
    batch: int
    codec: str | None
    seed: int

    def text(self) -> str:
        """Writes it as an argument of a command line."""
        return json.dumps(asdict(self))


def run(work: Work, say: Say) -> None:
    """Takes steps, as often as it is told to."""
    import resource  # which not every system has that the other commands run on

    if work.kept and not keep_memory():
        raise RuntimeError(
            "memory cannot be kept here: glibc is missing, or the environment chose an allocator; unset all variables "
            "MALLOC_..., GLIBC_TUNABLES and LD_PRELOAD"
        )
    torch.manual_seed(work.seed)
    pipe = _pipe(work)
    images = torch.rand(work.batch, 3, _PIXELS, _PIXELS).to(memory_format=torch.channels_last)
    labels = torch.randint(_CLASSES, (work.batch,))
    say({"ready": True})
    while sys.stdin.readline():
        functional.cross_entropy(pipe(images), labels).backward()
        pipe.zero_grad()
        used = resource.getrusage(resource.RUSAGE_SELF)
        say({"faults": used.ru_minflt, "peak_mib": used.ru_maxrss / _KIB})


def _pipe(work: Work) -> Pipe:
    network = NETWORKS[_NETWORK]
    model = network.make(_CLASSES, 0.0)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if work.codec is None:
        return Pipe(model, [len(model)], devices=["cpu"], chunks=1)
    cut = network.cuts[_CUT]
    parts = split(model, at=[cut.middle, cut.last])
    return Pipe(parts, devices=["cpu"] * 3, chunks=1, codec=work.codec, grad_codec=work.codec)


def _work(text: str, say: Say) -> None:
    run(Work(**json.loads(text)), say)


if __name__ == "__main__":
    live(_work, listens=True)
