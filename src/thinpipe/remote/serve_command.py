"""The words of ``thinpipe serve`` on the command line."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from thinpipe.errors import BAD_VALUES, ThinpipeError
from thinpipe.help import a_folder, a_path
from thinpipe.remote.metrics import status_line
from thinpipe.runtime.heap import keep_memory

if TYPE_CHECKING:
    from thinpipe.links.net.keys import ServerKeys
    from thinpipe.remote.server import Server
    from thinpipe.train.stop import Stop

_ALL = "all"
"""For all recipes."""
_OFTEN, _SELDOM = 0.5, 10.0
"""Seconds between two looks at the sessions, in a terminal and elsewhere."""


def serve_command(
    *,
    listen: Annotated[str, typer.Option(help="Where to wait for clients, as host:port.")] = "127.0.0.1:5555",
    key: Annotated[
        Path | None, typer.Option(parser=a_path, metavar="FILE", help="The server's .key file, from thinpipe keygen.")
    ] = None,
    clients: Annotated[
        str | None, typer.Option(help="Who may connect: .pub files with commas between, or a folder of them.")
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="A recipe to offer, or all; repeat it (default: all, but none beside an --offer)."),
    ] = None,
    offer: Annotated[
        list[str] | None,
        typer.Option(help="A model of yours: name=path/to/file.py:factory, which returns an Offer; repeat it."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True, help="A file of weights, or a folder of an encoder, that clients begin with; repeat it."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            parser=a_folder, metavar="DIR", help="Where sessions are saved (default: nowhere; a restart loses them)."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="As cuda:0 (default: a GPU if there is one).")] = None,
    max_clients: Annotated[int, typer.Option(min=1, help="Sessions at once.")] = 4,
    idle: Annotated[float, typer.Option(min=1, help="Seconds until a silent session is saved and dropped.")] = 3600,
    metrics: Annotated[int | None, typer.Option(help="A port on this machine with Prometheus metrics.")] = None,
) -> None:
    """Lends the middle of models to clients, which keep their data, their labels and both ends.

    Without keys it listens to this machine only. Ctrl-C or SIGTERM saves all sessions and ends.

    Example: [bold]thinpipe serve --listen 0.0.0.0:5555 --key keys/server.key --clients keys/alice.pub[/bold]
    """
    if (key is None) != (clients is None):
        raise typer.BadParameter("--key and --clients belong together: the server's keys, and who may connect")
    keep_memory()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    try:
        from thinpipe.remote.server import Server  # only clients and servers need ZeroMQ
        from thinpipe.train.offers import Offers
        from thinpipe.train.stop import Stop
        from thinpipe.train.user_offer import user_offers

        offers = Offers(_recipes(recipe or [], offer or []), user_offers(offer or []), files=file or [])
        keys = None if key is None or clients is None else _keys(key, clients)
        with (
            Stop() as stop,
            Server(
                offers,
                listen=listen,
                keys=keys,
                folder=folder,
                device=device,
                max_clients=max_clients,
                idle=idle,
                metrics=metrics,
            ) as server,
        ):
            _tell(console, server, offers, keys, folder)
            _watch(console, server, stop)
    except (ThinpipeError, ImportError, OSError) as error:
        from thinpipe.train.recipe import RecipeError

        typer.echo(str(error), err=True)
        raise typer.Exit(2 if isinstance(error, (*BAD_VALUES, RecipeError)) else 1) from error
    if folder is None:
        console.print("ended")
    elif unsaved := len(server.statuses()):
        typer.echo(f"ended; {unsaved} sessions could not be saved in {folder}: see above", err=True)
        raise typer.Exit(1)
    else:
        console.print(f"ended; all sessions are saved in {folder}")


def _recipes(named: Sequence[str], offers: Sequence[str]) -> Sequence[str] | None:
    """Tells which recipes are offered; None for all."""
    if _ALL in named or not (named or offers):
        return None
    return named


def _keys(key: Path, clients: str) -> ServerKeys:
    from thinpipe.links.net.keys import ServerKeys, read_pair, read_public

    place = Path(clients)
    files = sorted(place.glob("*.pub")) if place.is_dir() else [Path(each.strip()) for each in clients.split(",")]
    own = read_pair(key)
    accepted = {read_public(file): file.stem for file in files}
    # A folder as keygen leaves it has the server's own among them.
    accepted.pop(own.public, None)
    if not accepted:
        raise FileNotFoundError(f"{clients} has no client's .pub file; make one with: thinpipe keygen NAME")
    return ServerKeys(own, accepted)


def _tell(
    console: Console, server: Server, offers: Iterable[str], keys: ServerKeys | None, folder: Path | None
) -> None:
    """Says what is offered, where, and to whom."""
    who = "to this machine only, for it has no keys (thinpipe keygen makes them)"
    if keys is not None:
        who = f"to {', '.join(keys.clients.values())}, encrypted"
    console.print(f"offers {', '.join(offers)}")
    console.print(f"listens at {server.address}, open {who}")
    console.print("saves no sessions; --folder saves them" if folder is None else f"saves sessions in {folder}")


def _watch(console: Console, server: Server, stop: Stop) -> None:
    """Shows the sessions until somebody wants to stop."""
    if console.is_terminal:
        with console.status("") as line:
            while not stop.wanted:
                line.update(escape(status_line(server.statuses())))
                time.sleep(_OFTEN)
        return
    due, last = time.monotonic(), ""
    while not stop.wanted:
        if time.monotonic() >= due:
            due += _SELDOM
            said = status_line(server.statuses())
            if said != last:
                console.print(said)
            last = said
        # A signal's handler does not end a sleep: it goes on for what is left of it.
        time.sleep(_OFTEN)
