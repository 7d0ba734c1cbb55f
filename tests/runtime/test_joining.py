"""Ranks that were restarted find each other in a store that is full of what earlier ones left."""

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from thinpipe.errors import StallError
from thinpipe.runtime.joining import agreed_round

WORLD = 3


def connected(port=0, *, serves=False):
    return dist.TCPStore("127.0.0.1", port, None, serves, timedelta(seconds=10), wait_for_workers=False)


def attempt(port, delays):
    """All ranks of one attempt, each after its own delay."""
    rounds = [None] * WORLD

    def run(rank):
        time.sleep(delays[rank])
        rounds[rank] = agreed_round(connected(port), rank, WORLD, timeout=10)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(WORLD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rounds


def test_every_attempt_agrees_on_a_round_of_its_own_whoever_comes_first():
    """Under torchrun, a restarted rank used to connect to the address of the process that had been killed."""
    store = connected(serves=True)
    found = [attempt(store.port, delays) for delays in ([0, 0, 0], [0, 0.3, 0.7], [0.7, 0.3, 0], [0, 0.9, 0])]
    assert all(len(set(rounds)) == 1 for rounds in found), found
    assert len({rounds[0] for rounds in found}) == len(found)


def test_a_rank_that_does_not_come_is_not_waited_for():
    store = connected(serves=True)
    for rank, why in enumerate(("not all of the 3 ranks came to rank 0", "rank 0 did not call rank 1 in time")):
        with pytest.raises(StallError, match=why):
            agreed_round(store, rank, WORLD, timeout=0.2)
