"""What the demo compares: one recipe, trained with one server over one link, with one codec after another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from thinpipe.codecs.warm import warm
from thinpipe.demo import NONE, RECIPE
from thinpipe.demo.server import served
from thinpipe.report.figures import Figures
from thinpipe.report.run import Run
from thinpipe.train.beginning import begin
from thinpipe.train.training import train

CHUNKS = 4
TRACE = "trace.json"
"""The file of a run in which a report looks for its timeline."""


@dataclass(frozen=True)
class Trained:
    """A run of the demo.

    Args:
        codec: of activations and gradients.
        path: of its folder.
        figures: how it went.
    """

    codec: str
    path: Path
    figures: Figures

    @property
    def sent(self) -> float:
        """Bytes of a batch, both ways, all that is no tensor included."""
        return self.network["sent"] + self.network["received"]

    @property
    def network(self) -> dict[str, float]:
        """What a batch cost, by the names of ``remote.cost.summary``."""
        assert self.figures.network is not None
        return self.figures.network


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What is trained.

    Args:
        codecs: one after the other; ``none`` sends tensors as they are.
        epochs: of each run.
        bandwidth: of the link each way, as ``20mbit``.
        seed: of the weights and the order of samples.
        folder: gets a run for each codec.
    """

    codecs: Sequence[str]
    epochs: int
    bandwidth: str
    seed: int
    folder: Path

    def run(self, tell: Callable[[str], None]) -> Iterator[Trained]:
        """Trains with each codec.

        Args:
            tell: told which one comes next.

        Raises:
            ThinpipeError: the server did not start, or there is no such codec.
            KeyboardInterrupt: somebody wanted to stop.
        """
        with ThreadPoolExecutor(1) as beside, _half_of_the_cores() as threads:
            # By one process for both, while the other one starts.
            compiled = beside.submit(warm, self.codecs)
            with served(RECIPE, threads=threads) as address:
                compiled.result()
                for codec in self.codecs:
                    tell(codec)
                    yield self._train(codec, address)

    def _train(self, codec: str, address: str) -> Trained:
        path = self.folder / _file_name(codec)
        fields = {"epochs": self.epochs, "seed": self.seed, "chunks": CHUNKS, "lr_schedule": "cosine"}
        words = {"connect": address, "bandwidth": self.bandwidth}
        packed = {} if codec == NONE else {"codec": codec, "grad_codec": codec}
        run, origin = begin(RECIPE, fields, words | packed, path)
        if train(run, origin, here=None, trace=path / TRACE):
            raise KeyboardInterrupt
        return Trained(codec, path, Figures.of(Run.read(path)))


@contextmanager
def _half_of_the_cores() -> Iterator[int]:
    """Leaves the other half to the server: neither side should wait for the other's threads."""
    before, half = torch.get_num_threads(), max(1, (os.cpu_count() or 2) // 2)
    torch.set_num_threads(half)
    try:
        yield half
    finally:
        torch.set_num_threads(before)


def _file_name(codec: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "+." else "-" for letter in codec)
