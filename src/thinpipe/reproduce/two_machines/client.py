"""The client's process; run as a module, with its ``Seat`` as the one argument and an ``Order`` on each line it reads.

For each batch of an order it says what it cost, ``{"cost": {...}, "counted": true}``, and at the order's end
``{"done": true}`` or ``{"failed": "PeerLost", "reason": "..."}``. It ends when its input does.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

import torch

from thinpipe.bench.rank_life import Say, live
from thinpipe.errors import ThinpipeError
from thinpipe.links.net.keys import ClientKeys, read_pair, read_public
from thinpipe.remote.client import Client
from thinpipe.reproduce.two_machines.work import Work
from thinpipe.runtime.heap import keep_memory

SCHEDULE = "stream"
_GIVE_UP = 5.0
"""Seconds to try to reach a server again; a row in which it was away is of no use anyway."""


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What stays the same for all orders.

    Args:
        threads: of the client's computation.
        key: the file of its keys; None for a server of the same machine.
        server: the file of the server's public key, if there are keys.
    """

    threads: int
    key: str | None
    server: str | None

    def text(self) -> str:
        """Writes it as an argument of a command line."""
        return json.dumps(asdict(self))

    def keys(self) -> ClientKeys | None:
        """Reads the keys."""
        if self.key is None or self.server is None:
            return None
        return ClientKeys(read_pair(self.key), read_public(self.server))


@dataclass(frozen=True, kw_only=True)
class Order:
    """Batches to be trained, in a session of their own.

    Args:
        work: what is trained.
        address: of the server.
        codecs: for each cut, both ways; None where tensors travel as they are.
        chunks: micro-batches.
        lr: the learning rate of both sides.
        bandwidth: bits a second that both ends hold themselves to; None for as fast as the link is.
        batch: rows of a batch.
        batches: how many of them count.
        warm_up: how many come before those.
    """

    work: Work
    address: str
    codecs: tuple[str | None, str | None]
    chunks: int
    lr: float
    bandwidth: float | None
    batch: int
    batches: int
    warm_up: int

    def text(self) -> str:
        """Writes it as a line."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Order:
        """Reads what ``text`` wrote."""
        entries = json.loads(text)
        entries["work"], entries["codecs"] = Work(**entries["work"]), tuple(entries["codecs"])
        return cls(**entries)


def _carry_out(order: Order, keys: ClientKeys | None, say: Say) -> None:
    work, codecs = order.work, dict(enumerate(order.codecs))
    parts = work.parts()
    inputs, targets = work.batch(order.batch)
    with Client(
        parts.first,
        parts.last,
        connect=order.address,
        offer=work.name,
        loss_fn=parts.loss_fn,
        optimizer=work.optimizer(),
        chunks=order.chunks,
        codec=codecs,
        grad_codec=codecs,
        schedule=SCHEDULE,
        keys=keys,
        seed=work.seed,
        bandwidth=order.bandwidth,
        example=work.example(),
        give_up=_GIVE_UP,
    ) as client:
        for number in range(order.warm_up + order.batches):
            client.step(inputs, targets, lr=order.lr)
            assert client.cost is not None
            say({"cost": client.cost.to_json(), "counted": number >= order.warm_up})


def _attend(text: str, say: Say) -> None:
    keep_memory()  # as `thinpipe train` does
    seat = Seat(**json.loads(text))
    torch.set_num_threads(seat.threads)
    keys = seat.keys()
    say({"ready": True})
    for line in sys.stdin:
        try:
            _carry_out(Order.read(line), keys, say)
        except ThinpipeError as error:
            say({"failed": type(error).__name__, "reason": str(error)})
        else:
            say({"done": True})


if __name__ == "__main__":
    live(_attend, listens=True)
