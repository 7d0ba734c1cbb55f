"""``thinpipe trace show``: where the time of a traced run went."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from thinpipe.errors import TraceError
from thinpipe.finite import dumps
from thinpipe.help import App, a_file
from thinpipe.trace.chrome import read_chrome
from thinpipe.trace.draw import as_svg
from thinpipe.trace.intervals import Interval
from thinpipe.trace.merged import Trace
from thinpipe.trace.shares import Shares, Traffic, shares, traffic

trace_app = App(
    help="Look at what a traced run did.\n\nExample: [bold]thinpipe trace show examples/simulated.json[/bold]",
    no_args_is_help=True,
)

_WIDTH, _MANY = 160, 5000


@trace_app.callback()
def _trace() -> None:
    """Holds the commands."""


@trace_app.command("show")
def show_command(
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="The trace that a run wrote, as JSON.")
    ],
    svg: Annotated[
        Path | None, typer.Option(parser=a_file, metavar="FILE", help="A file that gets the drawing.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Only the last so many training steps.")] = None,
    start: Annotated[float | None, typer.Option("--from", min=0, help="Only from here, in milliseconds.")] = None,
    end: Annotated[float | None, typer.Option("--to", min=0, help="Only up to here, in milliseconds.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Make the last line one JSON object.")] = False,
) -> None:
    """Tells how long each rank computed and stood still, and how much of the wire hid under the computation.

    Compute, bubble (standing still inside a step) and between (standing still between steps) add up to all of a rank's
    time. Encode, wire and decode run beside them. A wire that is hidden costs nothing; if bubbles are long and the wire
    is not hidden, the links are too slow for what crosses them: try a smaller codec or more micro-batches. If bubbles
    are long and the wire is short, the stages are out of balance or the micro-batches too few.

    The same file opens in ui.perfetto.dev and in chrome://tracing.

    Example: [bold]thinpipe trace show examples/simulated.json --steps 2 --svg trace.svg[/bold]
    """
    try:
        trace = read_chrome(file)
        window = _window(trace, steps, start, end)
        drawing = None if svg is None else as_svg(trace, _title(file, trace), window)
    except (TraceError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    each, links = shares(trace, window), traffic(trace, window)
    console = Console(highlight=False, markup=False)
    console = console if console.is_terminal else Console(highlight=False, markup=False, width=_WIDTH)
    console.print(_shares_table(each))
    if links:
        console.print(_links_table(links))
    console.print(_sentence(trace, window))
    if svg is not None and drawing is not None:
        svg.write_text(drawing, "utf-8")
        console.print(f"wrote {svg}", soft_wrap=True)
        if drawing.count("<rect ") > _MANY:
            console.print("That is a large drawing; --steps 2 makes one of the last two steps.")
    if json:
        result = {"from": window[0], "to": window[1], "ranks": [asdict(one) for one in each]}
        typer.echo(dumps({**result, "links": [{**asdict(one), "rate": one.rate} for one in links]}))


def _window(trace: Trace, steps: int | None, start: float | None, end: float | None) -> Interval:
    if steps is not None and (start is not None or end is not None):
        raise TraceError("--steps and --from or --to are two ways to choose a window; use one of them")
    if steps is not None:
        return trace.last_steps(steps)
    window = (start or 0.0) / 1e3, trace.length if end is None else min(end / 1e3, trace.length)
    if not window[0] < window[1]:
        raise TraceError(f"the trace goes from 0 to {1e3 * trace.length:g} ms, got --from {start} --to {end}")
    return window


def _title(file: Path, trace: Trace) -> str:
    return f"{file.name}: {len(trace.ranks)} ranks, {1e3 * trace.length:.4g} ms"


def _shares_table(each: list[Shares]) -> Table:
    table = Table("rank", "compute", "bubble", "between", "encode", "wire", "decode", "wire under compute")
    for one in each:
        parts = (one.compute, one.bubble, one.rest, one.encode, one.wire, one.decode)
        hidden = "-" if one.hidden is None else f"{one.hidden:.1%}"
        table.add_row(str(one.rank), *(f"{part:.1%}" for part in parts), hidden)
    return table


def _links_table(links: list[Traffic]) -> Table:
    table = Table("link", "messages", "bytes", "ms on the wire", "Mbit/s")
    for one in links:
        rate = "-" if one.rate is None else f"{8e-6 * one.rate:,.1f}"
        carried = (f"{one.messages:,}", f"{one.bytes:,}", f"{1e3 * one.seconds:,.2f}")
        table.add_row(f"{one.source} → {one.target}", *carried, rate)
    return table


def _sentence(trace: Trace, window: Interval) -> str:
    count = len(trace.steps)
    steps = f"{count} step{'s' * (count > 1)}, " if count else ""
    said = f"{steps}{1e3 * trace.length:.4g} ms in all; shown is {1e3 * window[0]:.4g} to {1e3 * window[1]:.4g} ms"
    worst = max(trace.uncertainty.values(), default=0.0)
    return said + (f"; clocks agree to ±{1e3 * worst:.2g} ms" if worst else "")
