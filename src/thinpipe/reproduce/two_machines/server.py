"""The server's process; run as a module, with its ``Assignment`` as the one argument.

It says where it listens, ``{"address": "127.0.0.1:40213"}``, and serves for as long as its parent lives.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from thinpipe.bench.rank_life import Say, live
from thinpipe.links.net.keys import ServerKeys, read_pair, read_public
from thinpipe.remote.server import Server
from thinpipe.reproduce.two_machines.work import Work

SERVER, CLIENT = "server", "client"
"""The names of their keys."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the server is to do.

    Args:
        listen: where, ``host:port``.
        works: what it lends the middles of.
        device: where it computes; None for a GPU, if there is one.
        threads: of its computation on a CPU.
        keys: the folder of both ends' keys; None for a server that only its own machine can reach.
    """

    listen: str
    works: tuple[Work, ...]
    device: str | None
    threads: int
    keys: str | None

    def text(self) -> str:
        """Writes it as an argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Assignment:
        """Reads what ``text`` wrote."""
        entries = json.loads(text)
        entries["works"] = tuple(Work(**work) for work in entries["works"])
        return cls(**entries)


def _serve(text: str, say: Say) -> None:
    assignment = Assignment.read(text)
    torch.set_num_threads(assignment.threads)
    keys = None
    if assignment.keys is not None:
        folder = Path(assignment.keys)
        keys = ServerKeys(read_pair(folder / f"{SERVER}.key"), {read_public(folder / f"{CLIENT}.pub"): CLIENT})
    offers = {work.name: work.offer() for work in assignment.works}
    with Server(offers, listen=assignment.listen, keys=keys, device=assignment.device) as server:
        say({"address": server.address, "device": str(server.device)})
        threading.Event().wait()


if __name__ == "__main__":
    live(_serve)
