"""The words of ``thinpipe demo`` on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from thinpipe.demo import NONE, RECIPE
from thinpipe.errors import ThinpipeError
from thinpipe.extras import need
from thinpipe.finite import dumps
from thinpipe.help import a_folder

if TYPE_CHECKING:
    from thinpipe.demo.compare import Demo, Trained

_CODECS = f"{NONE},sort:6+2,had:4,wave:4"
_WIDTH = 120


def demo_command(
    *,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Epochs over the 1,438 training images.")] = 6,
    bandwidth: Annotated[str, typer.Option(metavar="RATE", help="Of the emulated link, each way.")] = "20mbit",
    codecs: Annotated[str, typer.Option(metavar="A,B", help="Compared, each for both directions.")] = _CODECS,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of weights and the order of images.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(parser=a_folder, metavar="DIR", help="Gets the runs and the report (default: one in runs)."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Gets a record of each run, in its folder demo (default: none).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Make the last line one JSON object.")] = False,
) -> None:
    """Trains with a server over a slow link, without and with codecs, and writes a report; about a minute.

    The server is another process on this machine and has the middle of the network. The handwritten digits, their
    labels, the first and the last layers stay in this one.

    Example: [bold]thinpipe demo --bandwidth 5mbit --codecs none,wave:4,block:2/32[/bold]
    """
    need("thinpipe demo", "zmq", "safetensors", "sklearn", *(("zstandard",) if "|zstd" in codecs else ()))
    from thinpipe.demo.compare import Demo
    from thinpipe.report.page import write_report

    names = _verified(codecs, bandwidth)
    folder = output or Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    if folder.exists() and any(folder.iterdir()):
        raise typer.BadParameter(f"{folder} has something in it; choose another --output, or remove it")
    demo = Demo(codecs=names, epochs=epochs, bandwidth=bandwidth, seed=seed, folder=folder)
    console, told = _console(), Console(stderr=True, highlight=False)
    try:
        done = list(demo.run(lambda name: told.print(f"codec {name}", markup=False)))
    except (ThinpipeError, ImportError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo(f"stopped; what was trained is in {folder}", err=True)
        raise typer.Exit(130) from error
    page = write_report([each.path for each in done], folder / "report.html")
    console.print(_table(done, demo))
    for line in _verdicts(done):
        console.print(line, soft_wrap=True)
    console.print(f"\nreport: {page}", soft_wrap=True)
    if record is not None:
        from thinpipe.bench.options import kept
        from thinpipe.demo.record import record_of

        for each in done:
            made = kept(record_of(each, done, demo), output=record, tiny=False)
            console.print(f"recorded in {made.path(record)}", soft_wrap=True)
    if json:
        runs = {each.codec: each.figures.to_json() | {"run": str(each.path)} for each in done}
        typer.echo(dumps({"report": str(page), "bandwidth": bandwidth, "runs": runs}))


def _verified(codecs: str, bandwidth: str) -> list[str]:
    """Reads the codecs, before anything is started."""
    from thinpipe.codecs import codec
    from thinpipe.links.throttle import parse_rate

    names = list(dict.fromkeys(word.strip() for word in codecs.split(",")))
    try:
        for name in names:
            codec(name)
        parse_rate(bandwidth)
    except ValueError as error:  # a SpecError is one
        raise typer.BadParameter(str(error)) from error
    return names


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


def _table(done: Sequence[Trained], demo: Demo) -> Table:
    title = f"{RECIPE}, {demo.epochs} epochs with a server over {demo.bandwidth} each way"
    table = Table(title=title)
    table.add_column("codec, both ways")
    for head in ("accuracy", "kB a batch", "of raw", "bandwidth needed", "peak", "ms a batch", "over none"):
        table.add_column(head, justify="right")
    base = _none(done)
    for each in done:
        seconds, network = each.figures.seconds or 0.0, each.network
        table.add_row(
            each.codec,
            f"{each.figures.accuracy or 0.0:.2%}",
            f"{each.sent / 1e3:,.1f}",
            f"{network['ratio']:.1%}",
            _rate(network["bandwidth_over_computation"]),
            _rate(network["peak"]),
            f"{1e3 * seconds:,.1f}",
            "" if base is None else f"{_faster(each, base):.2f}x",
        )
    table.caption = (
        "kB: all bytes of a batch, both ways. Bandwidth needed: those over the computation of both sides, so that "
        "neither side waits. Peak: in the busiest 100 ms, one way."
    )
    return table


def _verdicts(done: Sequence[Trained]) -> list[str]:
    """Says what each codec has changed."""
    base = _none(done)
    if base is None:
        return []
    return [
        f"{each.codec}: {base.sent / each.sent:.1f} times fewer bytes than {NONE}, "
        f"a batch {_faster(each, base):.1f} times as fast, accuracy {_points(each, base):+.1f} points"
        for each in done
        if each is not base
    ]


def _none(done: Sequence[Trained]) -> Trained | None:
    return next((each for each in done if each.codec == NONE), None)


def _faster(each: Trained, base: Trained) -> float:
    return (base.figures.seconds or 0.0) / (each.figures.seconds or 1.0)


def _points(each: Trained, base: Trained) -> float:
    return 100 * ((each.figures.accuracy or 0.0) - (base.figures.accuracy or 0.0))


def _rate(rate: float) -> str:
    return f"{8e-6 * rate:,.1f} Mbit/s"
