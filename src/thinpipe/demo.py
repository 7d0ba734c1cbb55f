"""``thinpipe demo``: a small network trained on real digits, uncut, cut in two, and with codecs at the cut."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from thinpipe.data.digits import Digits, load_digits
from thinpipe.runtime.pipe import Pipe
from thinpipe.skip import pop, skippable, stash

BATCH = 128
CHUNKS = 4
CODECS = ("fp16", "sort:6+2", "uniform:8", "block:4", "had:4", "block:2/32", "topk:0.1|block:8")
"""At the cut, activations and gradients alike, from many bytes to few."""


@skippable(stash=["input"])
class Begin(nn.Module):
    """The first half of a residual block: stashes its input for the end of it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Generator[stash, None, Tensor]:
        """Stashes the input, then convolves it."""
        yield stash("input", x)
        return functional.relu(self.conv(x))


@skippable(pop=["input"])
class End(nn.Module):
    """The second half: adds what was stashed, in another stage if the cut goes through the block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Generator[pop, Tensor, Tensor]:
        """Convolves, and adds what was stashed."""
        skip = yield pop("input")
        return functional.relu(self.conv(x) + skip)


def network(channels: int = 48) -> nn.Sequential:
    """Builds a residual network for 8 x 8 images, of layers of about equal work on both sides of its middle."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        Begin(channels),
        End(channels),
        nn.Flatten(),
        nn.Linear(channels * 64, 10),
    )


@dataclass(frozen=True)
class Run:
    """One way to train the network, and how it went.

    Args:
        way: how it was cut and what was recomputed, for the table.
        model: the trained module.
        loss: the mean loss of the last epoch.
        accuracy: on the test images.
        seconds: for one epoch, the median.
    """

    way: tuple[str, str, str]
    model: nn.Module
    loss: float
    accuracy: float
    seconds: float


def train(way: tuple[str, str, str], model: nn.Module, data: Digits, epochs: int, tick: Callable[[], None]) -> Run:
    """Trains with SGD and momentum on batches of 128, the last one being smaller; then tests."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    shuffle = torch.Generator().manual_seed(0)
    losses: list[float] = []
    times: list[float] = []
    for _ in range(epochs):
        began = time.perf_counter()
        total = 0.0
        for rows in torch.randperm(len(data.train_labels), generator=shuffle).split(BATCH):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(data.train_images[rows]), data.train_labels[rows])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        losses.append(total / len(data.train_labels))
        times.append(time.perf_counter() - began)
        tick()
    model.eval()
    with torch.no_grad():
        right = (model(data.test_images).argmax(1) == data.test_labels).double().mean()
    return Run(way, model, losses[-1], float(right), statistics.median(times))


def difference(run: Run, other: Run) -> float:
    """Returns the largest difference between two runs' weights, relative to the largest weight."""
    pairs = list(zip(run.model.parameters(), other.model.parameters(), strict=True))
    largest = max(float(weight.detach().abs().max()) for _, weight in pairs)
    return max(float((a - b).detach().abs().max()) for a, b in pairs) / largest


def demo_command(
    epochs: Annotated[int, typer.Option(min=1, help="Epochs over the 1,438 training images.")] = 6,
    seed: Annotated[int, typer.Option(help="Of the first weights.")] = 0,
) -> None:
    """Trains a small network on handwritten digits, uncut, cut into two stages, and with codecs at the cut.

    First it shows that a cut changes nothing, to the last bits of a double; then what each codec sends over the cut,
    and what that does to the accuracy.

    Example: [bold]thinpipe demo --epochs 3[/bold]
    """
    console = Console()
    data = load_digits()
    same = _compare_cuts(data, epochs, seed, console)
    _compare_codecs(data, epochs, seed, console)
    if not same:
        raise typer.Exit(1)


def _compare_cuts(data: Digits, epochs: int, seed: int, console: Console) -> bool:
    """Trains uncut and cut, in double precision; prints the runs side by side, and tells whether they are the same."""
    data = Digits(data.train_images.double(), data.train_labels, data.test_images.double(), data.test_labels)
    torch.manual_seed(seed)
    model = network().double()
    # The cut goes through the residual block: the skip travels from the first stage to the second.
    runs: dict[tuple[str, str, str], nn.Module] = {("uncut", "1", ""): copy.deepcopy(model)}
    for mode in ("never", "except_last", "always"):
        pipe = Pipe(copy.deepcopy(model), [3, 3], devices=["cpu", "cpu"], chunks=CHUNKS, checkpoint=mode)
        runs["2 stages", str(CHUNKS), mode] = pipe
    done = _train_all(runs, data, epochs)
    console.print(_table(done, epochs))
    worst = max(difference(run, done[0]) for run in done[1:])
    same = worst < 1e-9 and len({run.accuracy for run in done}) == 1
    verdict = "the same network" if same else "NOT the same network"
    console.print(f"Cut or uncut: {verdict}, to {worst:.0e} of the largest weight.\n")
    return same


def _compare_codecs(data: Digits, epochs: int, seed: int, console: Console) -> None:
    """Trains with codecs at the cut; prints what they sent and how well the network learned."""
    runs: dict[tuple[str, str, str], nn.Module] = {}
    pipes: dict[str, Pipe] = {}
    for spec in ("none", *CODECS):
        torch.manual_seed(seed)
        pipe = Pipe(network(), [3, 3], devices=["cpu", "cpu"], chunks=CHUNKS, codec=spec, grad_codec=spec)
        pipes[spec] = runs["2 stages", str(CHUNKS), spec] = pipe
    table = Table(
        "codec, both ways", "sent", "of raw", "accuracy", "loss", title=f"the cut compressed, {epochs} epochs"
    )
    for run in _train_all(runs, data, epochs):
        flows = [flow for cut in pipes[run.way[2]].traffic() for flow in cut]
        packed, raw = sum(flow.packed for flow in flows), sum(flow.raw for flow in flows)
        sent, share = f"{packed / 1e6:.1f} MB", f"{packed / raw:.1%}"
        table.add_row(run.way[2], sent, share, f"{run.accuracy:.2%}", f"{run.loss:.4f}")
    console.print(table)
    console.print("Sent: all bytes of all packets that crossed the cut, both ways, headers included.")


def _train_all(runs: dict[tuple[str, str, str], nn.Module], data: Digits, epochs: int) -> list[Run]:
    done: list[Run] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training", total=epochs * len(runs))
        for way, module in runs.items():
            progress.update(task, description=f"{way[0]} {way[2]}")
            done.append(train(way, module, data, epochs, lambda: progress.advance(task)))
    return done


def _table(runs: list[Run], epochs: int) -> Table:
    heads = ("model", "chunks", "recompute", "accuracy", "loss", "s/epoch", "off by")
    table = Table(*heads, title=f"handwritten digits after {epochs} epochs; off by: of the weights")
    for run in runs:
        off = "" if run is runs[0] else f"{difference(run, runs[0]):.0e}"
        table.add_row(*run.way, f"{run.accuracy:.2%}", f"{run.loss:.4f}", f"{run.seconds:.2f}", off)
    return table
