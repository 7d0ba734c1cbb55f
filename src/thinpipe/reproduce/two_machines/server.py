"""The server's process; run as a module, with its ``Assignment`` as the one argument.

It says where it listens, ``{"address": "127.0.0.1:40213"}``, and serves for as long as its parent lives.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from thinpipe.bench.rank_life import Say, live
from thinpipe.links.net.keys import ServerKeys, read_pair, read_public
from thinpipe.remote.offer import Offer
from thinpipe.remote.server import Server
from thinpipe.reproduce.two_machines.work import Work
from thinpipe.runtime.heap import keep_memory
from thinpipe.train.offers import Offers

SERVER, CLIENT = "server", "client"
"""The names of their keys."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the server is to do.

    Args:
        listen: where, ``host:port``.
        device: where it computes; None for a GPU, if there is one.
        threads: of its computation on a CPU.
        works: what it lends the middles of (default: nothing).
        recipes: recipes that it lends the middles of, if it lends none of works.
        files: what they may begin with, beside what the folders of data sets have (default: nothing).
        folder: where sessions are saved (default: nowhere).
        keys: the folder of both ends' keys (default: none, for a server that only its own machine can reach).
    """

    listen: str
    device: str | None
    threads: int
    works: tuple[Work, ...] = ()
    recipes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    folder: str | None = None
    keys: str | None = None

    def text(self) -> str:
        """Writes it as an argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Assignment:
        """Reads what ``text`` wrote."""
        entries = json.loads(text)
        entries["works"] = tuple(Work(**work) for work in entries["works"])
        return cls(**entries)

    def offers(self) -> Mapping[str, Offer]:
        """Makes what it lends."""
        if self.works:
            return {work.name: work.offer() for work in self.works}
        return Offers(self.recipes, files=tuple(map(Path, self.files)))


def _serve(text: str, say: Say) -> None:
    keep_memory()  # else a batch waits for the system to fill with zeros what the one before it gave back
    assignment = Assignment.read(text)
    torch.set_num_threads(assignment.threads)
    keys = None
    if assignment.keys is not None:
        folder = Path(assignment.keys)
        keys = ServerKeys(read_pair(folder / f"{SERVER}.key"), {read_public(folder / f"{CLIENT}.pub"): CLIENT})
    with Server(
        assignment.offers(),
        listen=assignment.listen,
        keys=keys,
        folder=assignment.folder,
        device=assignment.device,
    ) as server:
        say({"address": server.address, "device": str(server.device)})
        threading.Event().wait()


if __name__ == "__main__":
    live(_serve)
