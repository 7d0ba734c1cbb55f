"""``thinpipe schedule show``: a schedule drawn, printed and proved."""

from __future__ import annotations

import json as javascript
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from thinpipe.help import App, a_file, a_finite
from thinpipe.schedule import text
from thinpipe.schedule.action import Kind
from thinpipe.schedule.draw import as_svg, in_terminal
from thinpipe.schedule.job import parse_workers
from thinpipe.schedule.named import SCHEDULES, plan
from thinpipe.schedule.simulate import Times, simulate

schedule_app = App(
    help="Look at schedules before anything runs.\n\n"
    "Example: [bold]thinpipe schedule show 1f1b --stages 3 --chunks 4[/bold]",
    no_args_is_help=True,
)

_WIDTH = 160


@schedule_app.callback()
def _schedule() -> None:
    """Holds the commands."""


@schedule_app.command("show")
def show_command(
    *,
    name: Annotated[str, typer.Argument(help=f"{', '.join(SCHEDULES)}.")],
    stages: Annotated[int, typer.Option(min=1, help="The number of stages.")] = 4,
    chunks: Annotated[int, typer.Option(min=1, help="The number of micro-batches.")] = 8,
    workers: Annotated[
        str | None,
        typer.Option(
            "--map", help="The worker of each stage; 0,1,0 is a U (default: one each; interleaved: two each)."
        ),
    ] = None,
    skips: Annotated[str | None, typer.Option(help="Skip connections, as 0-2,1-3.")] = None,
    ahead: Annotated[
        int, typer.Option(min=0, help="How many more micro-batches a stage may hold for each stage after it.")
    ] = 0,
    forward: Annotated[float, typer.Option(parser=a_finite, metavar="T", help="Time of a forward.")] = 1.0,
    backward: Annotated[
        float, typer.Option(parser=a_finite, metavar="T", help="Time of a backward, both parts.")
    ] = 2.0,
    encode: Annotated[
        float, typer.Option(parser=a_finite, metavar="T", help="Time to pack a message, beside the computation.")
    ] = 0.0,
    wire: Annotated[
        float, typer.Option(parser=a_finite, metavar="T", help="Time of a message on its link, one after the other.")
    ] = 0.0,
    decode: Annotated[float, typer.Option(parser=a_finite, metavar="T", help="Time to unpack a message.")] = 0.0,
    svg: Annotated[
        Path | None, typer.Option(parser=a_file, metavar="FILE", help="A file that gets the drawing, links included.")
    ] = None,
    lists: Annotated[bool, typer.Option("--lists", help="Print the lists of actions, too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Make the last line one JSON object.")] = False,
) -> None:
    """Draws what each worker does and when, and tells how long they stand still.

    F is a forward, B a backward; I and W are the parts of a backward for the input and for the weights. The schedule is
    proved to be complete and free of deadlock first.

    Example: [bold]thinpipe schedule show 1f1b --stages 3 --chunks 4 --map 0,1,0 --wire 0.5[/bold]
    """
    try:
        pairs = tuple(_pair(word) for word in skips.split(",")) if skips is not None else ()
        chosen = None if workers is None else parse_workers(workers)
        job, actions = plan(name, stages, chunks, chosen, pairs, ahead=ahead)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    compute = {
        Kind.FORWARD: forward,
        Kind.RECOMPUTE: forward,
        Kind.BACKWARD: backward,
        Kind.INPUT: backward / 2,
        Kind.WEIGHT: backward / 2,
    }
    timeline = simulate(job, actions, Times(compute, encode, wire, decode))
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=_WIDTH)
    for line in in_terminal(job, timeline, console.width):
        console.print(line)
    console.print(f"{timeline.length:g} units of time, of which workers stand still {timeline.bubble:.1%}")
    if lists:
        console.print(text.write(actions), end="")
    if svg is not None:
        svg.write_text(as_svg(job, timeline, f"{name}, {stages} stages, {chunks} micro-batches"))
        console.print(f"wrote {svg}")
    if json:
        result = {"schedule": name, "length": timeline.length, "bubble": timeline.bubble, "workers": list(job.workers)}
        typer.echo(javascript.dumps({**result, "lists": [[str(action) for action in each] for each in actions]}))


def _pair(word: str) -> tuple[int, int]:
    source, dash, target = word.partition("-")
    if not dash or not source.isdecimal() or not target.isdecimal():
        raise ValueError(f"a skip is written as 0-2, from a stage to a later one, got {word!r}")
    return int(source), int(target)
