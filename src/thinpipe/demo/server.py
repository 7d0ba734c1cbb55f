"""The demo's server; run as a module it is that process, which lives as long as its parent does."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from thinpipe.bench.link_processes import LOOK, started, told
from thinpipe.bench.rank_life import Say, live

_PATIENCE = 120.0
"""Seconds for a server to start, on a machine that is busy with other things."""


@contextmanager
def served(recipe: str, *, threads: int) -> Iterator[str]:
    """Starts a server on this machine, and ends it.

    Args:
        recipe: whose middle it lends.
        threads: of its computation.

    Yields:
        Its address.

    Raises:
        RankError: it did not start; the message has what it said last.
    """
    command = [sys.executable, "-m", __spec__.name, json.dumps([recipe, threads])]
    with started([command], heard=[0]) as ranks:
        try:
            line = ranks[0].line(_PATIENCE)
        except TimeoutError as error:
            raise told(f"the server did not start within {_PATIENCE:.0f} s", ranks) from error
        if not line:
            with suppress(subprocess.TimeoutExpired):  # its output ends a moment before it does
                ranks[0].process.wait(LOOK)
            raise told("the server did not start", ranks)
        yield str(json.loads(line)["address"])


def _serve(text: str, say: Say) -> None:
    from thinpipe.remote.server import Server  # needs ZeroMQ, and says so
    from thinpipe.train.offers import Offers

    recipe, threads = json.loads(text)
    torch.set_num_threads(threads)
    with Server(Offers([recipe]), listen="127.0.0.1:0", device="cpu") as server:
        say({"address": server.address})
        threading.Event().wait()


if __name__ == "__main__":
    live(_serve)
