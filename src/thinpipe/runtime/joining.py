"""``join``: ``init_process_group`` for programs that torchrun restarts.

torchrun keeps one store for all attempts of a run (as of PyTorch 2.13). A process that was just restarted may find in
it the address of one that was killed, and then fails to connect, or waits for half an hour. Counting attempts does not
help: on several machines each counts for itself. So ranks first agree on a round that no earlier process is in::

    rank r   here/r = a number drawn just now ──┐                        is mine among them? then: seen/R/r
    rank 0   reads all of them ─────────────────┴─> round R = all of them ─────────────────────────┘
             waits for everybody's ``seen``; who was missing had an old number there, so it reads all of them again
"""

from __future__ import annotations

import json
import secrets
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from thinpipe import arguments
from thinpipe.errors import StallError

_PAUSE = 0.02
_AGAIN = 0.5
"""Seconds after which rank 0 reads all numbers again."""


def join(backend: str = "gloo", *, timeout: float = 300.0, **options: Any) -> None:
    """Makes the default process group of a program that torchrun has started, or restarted.

    Args:
        backend: as in ``init_process_group``. Default: ``gloo``.
        timeout: seconds to wait for all ranks. Default: 300.
        options: more for ``init_process_group``.

    Raises:
        StallError: not all ranks came.
    """
    arguments.seconds("timeout", timeout)
    store, rank, world = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
    fresh = agreed_round(store, rank, world, timeout=timeout)
    dist.init_process_group(
        backend, store=PrefixStore(f"thinpipe/round/{fresh}", store), rank=rank, world_size=world, **options
    )


def agreed_round(store: Store, rank: int, world: int, *, timeout: float) -> str:
    """Finds a name that only the ranks which are there now have in common.

    Args:
        store: where the ranks meet; what earlier ones left in it does no harm.
        rank: this one.
        world: the number of ranks.
        timeout: seconds to wait for the others.

    Raises:
        StallError: not all came.
    """
    until = time.monotonic() + timeout
    own = secrets.token_hex(8)
    store.set(f"thinpipe/here/{rank}", own)
    return _lead(store, world, own, until) if rank == 0 else _follow(store, rank, own, until)


def _lead(store: Store, world: int, own: str, until: float) -> str:
    numbers: list[str] = []
    while time.monotonic() < until:
        if not store.check([f"thinpipe/here/{rank}" for rank in range(world)]):
            time.sleep(_PAUSE)
            continue
        numbers = [own, *(store.get(f"thinpipe/here/{rank}").decode() for rank in range(1, world))]
        fresh = secrets.token_hex(8)
        store.set("thinpipe/round", json.dumps([fresh, *numbers]))
        again = time.monotonic() + _AGAIN
        while time.monotonic() < again:
            if store.check([f"thinpipe/seen/{fresh}/{rank}" for rank in range(1, world)] or ["thinpipe/here/0"]):
                store.set(f"thinpipe/agreed/{fresh}", "")
                return fresh
            time.sleep(_PAUSE)
    raise StallError(f"not all of the {world} ranks came to rank 0 in time; see whether all were started")


def _follow(store: Store, rank: int, own: str, until: float) -> str:
    while time.monotonic() < until:
        if store.check(["thinpipe/round"]):
            fresh, *numbers = json.loads(store.get("thinpipe/round"))
            if own in numbers:
                store.set(f"thinpipe/seen/{fresh}/{rank}", "")
                # Others may have had an old number in this round, and rank 0 then calls another.
                if store.check([f"thinpipe/agreed/{fresh}"]):
                    return str(fresh)
        time.sleep(_PAUSE)
    raise StallError(f"rank 0 did not call rank {rank} in time; see whether all ranks were started")
