"""The words of ``thinpipe train`` on the command line."""

from __future__ import annotations

import json as javascript
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from thinpipe.errors import ThinpipeError
from thinpipe.report.figures import Figures
from thinpipe.report.run import Run
from thinpipe.report.show import show_figures
from thinpipe.train.local import Local
from thinpipe.train.log import Origin, RunError, RunFolder
from thinpipe.train.loop import Loop
from thinpipe.train.parts import data as data_of
from thinpipe.train.parts import parts
from thinpipe.train.progress import watching
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.recipes import RECIPES, resolved
from thinpipe.train.settings import Settings
from thinpipe.train.stop import Stop
from thinpipe.train.trainer import Trainer

_WIDTH = 120
_PATIENCE = "finishing the step; again to stop at once"
_MAY_CHANGE = ("connect", "key", "server", "bandwidth", "every", "device")
"""Settings that a resumed run may have others of: they change where and how fast it runs, not what it computes."""


def train_command(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help=f"{', '.join(RECIPES)}.", show_default=False)],
    *,
    connect: Annotated[
        str | None, typer.Option(help="The server that has the middle, as host:port (default: train all of it here).")
    ] = None,
    key: Annotated[str | None, typer.Option(help="This client's .key file, from thinpipe keygen.")] = None,
    server: Annotated[str | None, typer.Option(help="The server's .pub file.")] = None,
    codec: Annotated[str | None, typer.Option(help="Packs activations at the cuts, as had:4.")] = None,
    grad_codec: Annotated[str | None, typer.Option(help="Packs gradients at the cuts.")] = None,
    cut: Annotated[str | None, typer.Option(help="Where the model is cut: pooled or documents.")] = None,
    chunks: Annotated[int | None, typer.Option(help="Micro-batches in a batch.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Of micro-batches: gpipe, 1f1b or zb (default: 1f1b).")] = None,
    epochs: Annotated[int | None, typer.Option(help="How often every sample is seen.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples in a batch.")] = None,
    lr: Annotated[float | None, typer.Option(help="The learning rate.")] = None,
    pixels: Annotated[int | None, typer.Option(help="The edge of an image.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and all that is drawn.")] = None,
    bandwidth: Annotated[str | None, typer.Option(help="Emulate a link of so much each way, as 50mbit.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: cpu).")] = None,
    run: Annotated[Path | None, typer.Option(help="The run's folder (default: a new one in runs).")] = None,
    every: Annotated[int | None, typer.Option(min=1, help="Steps between saved states (default: 50).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with --run, or with the last run.")] = False,
    trace: Annotated[Path | None, typer.Option(help="A file that gets a trace of both sides.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Make the last line one JSON object.")] = False,
) -> None:
    """Trains a recipe: with a server that has the middle of the model, or without --connect in this process alone.

    The data, the labels and both ends of the model stay here. Ctrl-C saves everything; --resume goes on with the same
    samples, as if nothing had happened.

    Example: [bold]thinpipe train digits --connect 127.0.0.1:5555 --codec had:4 --grad-codec had:4[/bold]
    """
    fields: dict[str, Any] = {
        "cut": cut,
        "chunks": chunks,
        "epochs": epochs,
        "batch": batch,
        "lr": lr,
        "pixels": pixels,
        "seed": seed,
    }
    words: dict[str, Any] = {"connect": connect, "key": key, "server": server, "codec": codec, "grad_codec": grad_codec}
    words |= {"schedule": schedule, "bandwidth": bandwidth, "every": every, "device": device}
    try:
        folder, origin = _chosen(recipe, _given(fields), _given(words), run, resume=resume)
        if trace is not None and origin.settings.connect is None:
            raise RecipeError("--trace shows both sides of a network; add --connect host:port, or leave it out")
    except ThinpipeError as error:
        raise typer.BadParameter(str(error)) from error
    try:
        status = _train(folder, origin, trace)
    except (ThinpipeError, ImportError, OSError) as error:
        typer.echo(str(error), err=True)
        if folder.states.exists():
            typer.echo(_how_to_go_on(folder, origin.recipe), err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        typer.echo(f"stopped at once; {_how_to_go_on(folder, origin.recipe)}", err=True)
        raise typer.Exit(130) from None
    _report(folder, as_json=json)
    raise typer.Exit(status)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _chosen(
    name: str, fields: dict[str, Any], words: dict[str, Any], path: Path | None, *, resume: bool
) -> tuple[RunFolder, Origin]:
    """Finds the folder, and what is to be trained in it."""
    asked = resolved(name, fields)
    if not resume:
        folder = RunFolder.fresh(name) if path is None else RunFolder(path)
        if folder.exists:
            raise RunError(f"{folder.path} has a run already; add --resume to go on with it, or choose another --run")
        return folder, Origin.now(asked, Settings(**words).verify())
    folder = RunFolder.newest(name) if path is None else RunFolder(path)
    origin = folder.origin()
    recipe = origin.recipe
    if recipe.name != name:
        raise RunError(f"{folder.path} is a run of {recipe.name}, not of {name}")
    for before, options, free in (
        (recipe.to_json(), {field: asked.to_json()[field] for field in fields}, ("epochs",)),
        (origin.settings.to_json(), words, _MAY_CHANGE),
    ):
        for option, value in options.items():
            if option not in free and value != before[option]:
                was = f"{before[option]}" if before[option] is not None else "not given"
                raise RunError(
                    f"--{option.replace('_', '-')} was {was} when the run was begun, and is {value} now; leave it out "
                    "to resume, or begin another run"
                )
    settings = Settings.from_json(origin.settings.to_json() | words).verify()
    if (settings.connect is None) != (origin.settings.connect is None):
        raise RunError(f"{folder.path} was begun without a server; begin another run for --connect")
    return folder, replace(
        origin, recipe=recipe.changed({"epochs": asked.epochs} if "epochs" in fields else {}), settings=settings
    )


def _train(folder: RunFolder, origin: Origin, trace: Path | None) -> int:
    """Trains to the end or to a signal; returns the exit status."""
    recipe, console = origin.recipe, Console(stderr=True, highlight=False)
    data = data_of(recipe)
    # Whoever waits for a server that is not there may leave at once; from the first step on a signal is a wish.
    with folder.made():
        trainer = _trainer(folder, origin, trace)
    try:
        # Not before there is somebody to train with: a server that refuses leaves no run behind.
        folder.begin(origin)
        log, total = folder.log(trainer.committed), recipe.epochs * data.steps_per_epoch
        watched = watching(console, epochs=recipe.epochs, total=total, done=trainer.committed)
        with Stop(_PATIENCE) as stop, watched as watcher:
            loop = Loop(
                recipe=recipe,
                data=data,
                loss_fn=parts(recipe).loss_fn,
                log=log,
                watcher=watcher,
                stopped=lambda: stop.wanted,
            )
            done = loop.run(trainer)
    finally:
        trainer.close()
    if done:
        folder.finish(Figures.of(Run.read(folder.path)).to_json())
        return 0
    console.print(f"saved after step {trainer.committed}; {_how_to_go_on(folder, recipe)}", soft_wrap=True)
    return stop.status


def _trainer(folder: RunFolder, origin: Origin, trace: Path | None) -> Trainer:
    settings = origin.settings
    if settings.connect is None:
        return Local(origin.recipe, folder=folder.states, every=settings.every, device=settings.device)
    from thinpipe.train.connected import connected  # whoever trains alone needs no ZeroMQ

    return connected(origin.recipe, settings, folder=folder.states, trace=trace)


def _how_to_go_on(folder: RunFolder, recipe: Recipe) -> str:
    return f"go on with: thinpipe train {recipe.name} --run {folder.path} --resume"


def _report(folder: RunFolder, *, as_json: bool) -> None:
    found = Run.read(folder.path)
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=_WIDTH)
    show_figures(found, console)
    console.print(f"the run is in {folder.path}; look at it with: thinpipe report {folder.path}", soft_wrap=True)
    if as_json:
        figures = Figures.of(found).to_json()
        typer.echo(javascript.dumps({"run": str(folder.path), "recipe": found.origin.recipe.to_json(), **figures}))
