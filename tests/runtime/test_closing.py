"""Ranks that end hang up only when no word is on its way: gloo never wakes who waits for the rest of one."""

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from thinpipe.links import forecast
from thinpipe.runtime import control
from thinpipe.runtime.agreement import part
from thinpipe.runtime.control import Control
from thinpipe.runtime.whereabouts import Whereabouts

LONG = 32 << 20
"""Bytes of a word that takes many times as long to pass as a rank needs to hang up."""
ROUNDS = 3
FAREWELL = 10.0
"""Seconds after which a rank that gets no answer hangs up all the same; long words on a busy machine take some."""


@pytest.fixture(autouse=True)
def long_words(monkeypatch):
    monkeypatch.setattr(forecast, "FIRST_SIZE", LONG)
    monkeypatch.setattr(control, "_FAREWELL", FAREWELL)


def ranks(world, life):
    """Has each rank of a new group live its life, in a thread of its own; returns the threads that they left behind."""
    store, before = dist.HashStore(), set(threading.enumerate())

    def run(rank):
        group = dist.ProcessGroupGloo(store, rank, world, timedelta(seconds=10))
        one = Control(group, Whereabouts(range(world)), timeout=10, patience=10)
        life(rank, one)
        one.close()
        part(group)
        one.join(time.monotonic() + 2)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(2)
    return [thread.name for thread in left if thread.is_alive()]


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_close_at_once_leave_no_thread_behind(world):
    """The first to have heard the other's goodbye hung up in the middle of the answer to its own, once in many runs."""
    together = threading.Barrier(world)
    for _ in range(ROUNDS):
        assert not ranks(world, lambda *_: together.wait())


def test_a_rank_that_closes_after_another_does_not_wait_for_its_answer():
    gone = threading.Event()

    def life(rank, one):
        if rank == 0:
            gone.wait()
        else:
            one.close()
            gone.set()

    began = time.monotonic()
    assert not ranks(2, life)
    assert time.monotonic() - began < FAREWELL


def test_ranks_that_failed_leave_no_thread_behind():
    """Everybody repeats what went wrong to everybody, and may hang up as soon as it has heard the same."""
    together = threading.Barrier(3)

    def life(rank, one):
        together.wait()
        if rank == 0:
            one.fail(ValueError("no such word"))
        else:
            failed = threading.Event()
            one.when_failed(failed.set)
            assert failed.wait(10)

    for _ in range(ROUNDS):
        assert not ranks(3, life)
