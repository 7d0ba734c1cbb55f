"""The words of ``thinpipe keygen`` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from thinpipe.errors import BAD_VALUES, ThinpipeError
from thinpipe.help import a_folder


def keygen_command(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="A name for each machine, as server alice.", show_default=False),
    ],
    *,
    folder: Annotated[Path, typer.Option(parser=a_folder, metavar="DIR", help="Where the files are written.")] = Path(
        "keys"
    ),
) -> None:
    """Makes pairs of keys, with which a server and its clients know each other and encrypt what they say.

    NAME.key is secret: it stays on its machine, readable by its owner alone. NAME.pub is for the others. Nothing is
    overwritten.

    Example: [bold]thinpipe keygen server alice[/bold]
    """
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise typer.BadParameter(f"{repeated[0]!r} is named twice; each machine has a name of its own")
    try:
        from thinpipe.links.net.keys import make_keys  # only clients and servers need ZeroMQ

        _verify_free(folder, names)
        for name in names:
            make_keys(folder, name)
    except (ThinpipeError, ImportError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2 if isinstance(error, BAD_VALUES) else 1) from error
    console = Console(highlight=False)
    for name in names:
        console.print(f"{folder / name}.key  secret; keep it on {name}'s machine alone", soft_wrap=True, markup=False)
        console.print(f"{folder / name}.pub  public; copy it to whom {name} talks to", soft_wrap=True, markup=False)
    if len(names) > 1:
        server, *clients = (str(folder / name) for name in names)
        listed = ",".join(f"{client}.pub" for client in clients)
        console.print(f"\nWith {names[0]} as the server:", markup=False)
        console.print(f"  thinpipe serve --key {server}.key --clients {listed}", soft_wrap=True, markup=False)
        console.print(f"and on {names[1]}'s machine:", markup=False)
        end = f"--key {clients[0]}.key --server {server}.pub"
        console.print(f"  thinpipe train digits --connect HOST:PORT {end}", soft_wrap=True, markup=False)


def _verify_free(folder: Path, names: list[str]) -> None:
    """Checks all names before any key is made, so that a refusal leaves nothing half done."""
    for path in (folder / f"{name}.{end}" for name in names for end in ("key", "pub")):
        if path.exists():
            raise FileExistsError(f"{path} exists, and is not overwritten; choose another name or --folder")
