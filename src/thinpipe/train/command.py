"""The words of ``thinpipe train`` on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from thinpipe.errors import BAD_VALUES, MissingPackageError, NotFiniteError, ThinpipeError
from thinpipe.finite import dumps
from thinpipe.help import MORE, HelpAll, a_file, a_folder
from thinpipe.report.figures import Figures
from thinpipe.report.run import Run
from thinpipe.report.show import show_figures
from thinpipe.runtime.joining import join
from thinpipe.schedule import SCHEDULES
from thinpipe.train.beginning import begin, resume
from thinpipe.train.dry_run import DryRun, show
from thinpipe.train.log import Origin, RunFolder
from thinpipe.train.recipe import RecipeError
from thinpipe.train.recipes import RECIPES, resolved
from thinpipe.train.settings import Settings
from thinpipe.train.together import ToldElsewhere, share
from thinpipe.train.toml_file import from_toml
from thinpipe.train.torchrun import Torchrun, leave
from thinpipe.train.training import how_to_go_on, is_traced, train

_WIDTH = 120
_RECIPE, _RUN = "Recipe", "Run"


def train_command(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help=f"{', '.join(RECIPES)}.", show_default=False)
    ] = None,
    *,
    stages: Annotated[int | None, typer.Option(min=1, metavar="N", help="Cut the model into so many stages.")] = None,
    chunks: Annotated[int | None, typer.Option(metavar="N", help="Micro-batches in a batch.")] = None,
    map: Annotated[str | None, typer.Option(metavar="0,1,0", help="torchrun's rank of each stage.")] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Make N pipelines of torchrun's ranks.")
    ] = None,
    data_parallel: Annotated[
        bool, typer.Option("--data-parallel", help="The whole model on each of torchrun's ranks.")
    ] = False,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="cpu or cuda (default: cpu).")] = None,
    codec: Annotated[
        # Named: typer 0.27 takes a metavar that is the parameter's name in capitals for the option's own name.
        str | None, typer.Option("--codec", metavar="CODEC", help="Packs activations at the cuts, as wave:4.")
    ] = None,
    grad_codec: Annotated[str | None, typer.Option(metavar="CODEC", help="Packs gradients at the cuts.")] = None,
    connect: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="A server that has the middle.")] = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", rich_help_panel=_RECIPE, help="How often every sample is seen.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="N", rich_help_panel=_RECIPE, help="Samples in a batch, of all ranks.")
    ] = None,
    lr: Annotated[float | None, typer.Option(metavar="X", rich_help_panel=_RECIPE, help="The learning rate.")] = None,
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIR", rich_help_panel=_RECIPE, help="Where the data set is.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="F=V", rich_help_panel=_RECIPE, help="Any field, as momentum=0.8; repeat it."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", rich_help_panel=_RUN, help="Print fields, plan, bytes, memory; train nothing.")
    ] = False,
    run: Annotated[
        Path | None,
        # torchrun takes --run for an abbreviation of an option of its own, wherever it stands.
        typer.Option(
            "--run", "--run-dir", parser=a_folder, metavar="DIR", rich_help_panel=_RUN, help="The run's folder."
        ),
    ] = None,
    go_on: Annotated[
        bool,
        typer.Option("--resume", rich_help_panel=_RUN, help="Go on with --run, or the last run; Ctrl-C saves it."),
    ] = False,
    no_tty: Annotated[
        bool, typer.Option("--no-tty", rich_help_panel=_RUN, help="Print plain lines instead of a display.")
    ] = False,
    help_all: HelpAll = False,  # noqa: ARG001 - it does everything by itself
    cut: Annotated[
        str | None, typer.Option(metavar="NAME", rich_help_panel=MORE, help="Which of the recipe's cuts in three.")
    ] = None,
    cuts: Annotated[
        str | None, typer.Option(metavar="A,B", rich_help_panel=MORE, help="Layers that begin a stage: name, number.")
    ] = None,
    bottleneck: Annotated[
        str | None,
        typer.Option(metavar="A/B", rich_help_panel=MORE, help="Learned, at each cut, as conv:20k4s4/conv:320."),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(metavar="NAME", rich_help_panel=MORE, help=f"Of micro-batches: {', '.join(SCHEDULES)}."),
    ] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="A,B", rich_help_panel=MORE, help="One for each stage, or local rank.")
    ] = None,
    give_up: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="S", rich_help_panel=MORE, help="Seconds to look for a lost server (600)."),
    ] = None,
    compile: Annotated[
        bool,
        typer.Option("--compile", rich_help_panel=MORE, help="Compile stages first, which takes minutes; for GPUs."),
    ] = False,
    bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", rich_help_panel=MORE, help="Emulate a link, as 50mbit each way.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FILE", rich_help_panel=MORE, help="This client's, of thinpipe keygen.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="FILE", rich_help_panel=MORE, help="The server's .pub file.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", rich_help_panel=MORE, help="Of weights, order and all that is drawn.")
    ] = None,
    pixels: Annotated[int | None, typer.Option(metavar="N", rich_help_panel=MORE, help="The edge of an image.")] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="TOML", rich_help_panel=MORE, help="A file of fields, as: epochs = 10")
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", rich_help_panel=MORE, help="Steps between saved states (20 s; 50 with others)."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(parser=a_file, metavar="FILE", rich_help_panel=MORE, help="Gets a trace of all processes."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", rich_help_panel=MORE, help="Make the last line one JSON object.")
    ] = False,
) -> None:
    """Trains a recipe in one of five ways, with the same numbers in the log.

    - [bold]thinpipe train digits[/bold]  on one device
    - [bold]thinpipe train digits --stages 2 --codec wave:4[/bold]  cut, in this process
    - [bold]torchrun --nproc-per-node 2 -m thinpipe train digits --map 0,1,0[/bold]  on ranks
    - [bold]torchrun --nproc-per-node 2 -m thinpipe train digits --data-parallel[/bold]
    - [bold]thinpipe train digits --connect 127.0.0.1:5555[/bold]  with thinpipe serve
    """
    if recipe is None:
        _list_recipes()
        raise typer.Exit(2)
    fields = {"cut": cut, "chunks": chunks, "epochs": epochs, "batch": batch, "lr": lr, "seed": seed}
    fields |= {"pixels": pixels, "data_dir": data_dir, "bottleneck": bottleneck}
    words: dict[str, Any] = {"connect": connect, "key": key, "server": server, "codec": codec, "grad_codec": grad_codec}
    words |= {"stages": stages, "cuts": cuts, "map": map, "replicas": replicas, "schedule": schedule}
    words |= {
        "bandwidth": bandwidth,
        "give_up": give_up,
        "compile": compile or None,
        "every": every,
        "device": device,
        "devices": devices,
        "data_parallel": data_parallel or None,
    }
    here: Torchrun | None = None
    try:
        here = Torchrun.here()
        words["ranks"] = None if here is None else here.world
        given = {**read_fields(recipe, file, changes or ()), **_given(fields)}
        if dry_run:
            _dry_run(recipe, given, _given(words), here, as_json=json)
            return
        folder, origin = _chosen(recipe, given, _given(words), run, here, go_on=go_on)
        if trace is not None and not is_traced(origin.settings.way):
            raise RecipeError("--trace shows both sides of a network; add --connect host:port, or leave it out")
    except MissingPackageError:
        raise
    except ThinpipeError as error:
        if here is not None and here.rank:
            # Rank 0 says what is wrong; torchrun would end it for this one's failure before it could.
            leave(0)
        raise typer.BadParameter(str(error)) from error
    status = _train(folder, origin, here, trace, plain=no_tty)
    if here is None or here.rank == 0:
        _report(folder, as_json=json)
    if here is not None:
        leave(status)
    raise typer.Exit(status)


def _list_recipes() -> None:
    grid = Table(box=None, show_header=False, pad_edge=False)
    for name, subject in RECIPES.items():
        grid.add_row(name, subject.about)
    console = _console()
    console.print("Say which recipe, as in: thinpipe train digits\n")
    console.print(grid)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def read_fields(recipe: str, file: Path | None, changes: Sequence[str]) -> dict[str, Any]:
    """Reads the fields that a file and ``--set`` name; what is said on the command line counts more.

    Raises:
        RecipeError: the file cannot be read, or a ``--set`` has no value.
    """
    found = {} if file is None else from_toml(file, recipe)
    for change in changes:
        field, equals, value = change.partition("=")
        if not equals:
            raise RecipeError(f"--set {change!r:.40} names no value; write --set momentum=0.8")
        found[field.strip().replace("-", "_")] = value.strip()
    return found


def _chosen(
    recipe: str, fields: dict[str, Any], words: dict[str, Any], path: Path | None, here: Torchrun | None, *, go_on: bool
) -> tuple[RunFolder, Origin]:
    """Finds the folder and what is to be trained in it; of several ranks the first does it for all."""
    choose = resume if go_on else begin
    if here is None:
        return choose(recipe, fields, words, path)
    join()
    if here.rank:
        return share(None)
    try:
        found = choose(recipe, fields, words, path)
    except ThinpipeError:
        with suppress(ToldElsewhere):
            share(None)
        raise
    return share(found)


def _train(folder: RunFolder, origin: Origin, here: Torchrun | None, trace: Path | None, *, plain: bool) -> int:
    """Trains, and explains what goes wrong; returns the exit status."""
    who = "" if here is None else f"rank {here.rank}: "
    try:
        return train(folder, origin, here=here, trace=trace, plain=plain)
    except (ThinpipeError, ImportError, OSError) as error:
        if here is None and isinstance(error, (*BAD_VALUES, RecipeError)):
            raise typer.BadParameter(str(error)) from error
        if isinstance(error, ToldElsewhere) or (here is not None and here.rank and isinstance(error, NotFiniteError)):
            # Another rank has the same error and says it; torchrun would end that one for this one's failure.
            leave(0)
        typer.echo(f"{who}{error}", err=True)
        if not isinstance(error, NotFiniteError) and folder.states.exists() and (here is None or here.rank == 0):
            typer.echo(how_to_go_on(folder, origin), err=True)
        status = 1
    except KeyboardInterrupt:
        typer.echo(f"{who}stopped at once; {how_to_go_on(folder, origin)}", err=True)
        status = 130
    if here is not None:
        leave(status)
    raise typer.Exit(status)


def _dry_run(
    recipe: str, fields: dict[str, Any], words: dict[str, Any], here: Torchrun | None, *, as_json: bool
) -> None:
    found = DryRun.of(resolved(recipe, fields), Settings(**words).verify())
    if here is not None and here.rank:
        return
    show(found, _console())
    if as_json:
        typer.echo(dumps(found.to_json()))


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


def _report(folder: RunFolder, *, as_json: bool) -> None:
    found = Run.read(folder.path)
    console = _console()
    show_figures(found, console)
    console.print(f"the run is in {folder.path}; look at it with: thinpipe report {folder.path}", soft_wrap=True)
    if as_json:
        figures = Figures.of(found).to_json()
        typer.echo(dumps({"run": str(folder.path), "recipe": found.origin.recipe.to_json(), **figures}))
