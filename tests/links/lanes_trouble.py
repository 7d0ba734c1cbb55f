"""Peers in trouble: rank 2 is killed, rank 3 is stopped, and rank 0, alone in a group with each, must notice."""

import os
import queue
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from lanes_support import raises, receiver, sender, zeros

from thinpipe.errors import PeerLost, StallError


def own_number():
    return torch.frombuffer(bytearray(os.getpid().to_bytes(8, "little")), dtype=torch.uint8)


def number_from(lane):
    return int.from_bytes(lane.receive().numpy().tobytes(), "little")


def lose(call):
    with raises(PeerLost, "rank 1"):
        call()


def a_killed_peer_is_lost(group):
    incoming, silent, outgoing = receiver(group, 1, 1), receiver(group, 1, 3), sender(group, 1, 2, window=1)
    number = number_from(incoming)
    outgoing.send([zeros(10)])
    outgoing.send([zeros(10)])  # nobody takes the first, so this one stays under way
    with ThreadPoolExecutor(3) as pool:
        calls = (outgoing.flush, lambda: outgoing.send([zeros(1)]), silent.receive)
        waits = [pool.submit(lose, call) for call in calls]
        time.sleep(0.2)
        assert not any(wait.done() for wait in waits)
        os.kill(number, signal.SIGKILL)
        for wait in waits:
            wait.result()
    assert [int(incoming.receive()[0]) for _ in range(3)] == [7, 7, 7], "what had come before must be given out"
    for _ in range(2):
        lose(incoming.receive)
    lose(outgoing.flush)
    lose(lambda: sender(group, 1, 4).send([zeros(1)]))
    lose(lambda: receiver(group, 1, 5).receive())
    told = queue.SimpleQueue()
    receiver(group, 1, 6, take=lambda _: None, failed=told.put)
    assert isinstance(told.get(timeout=10), PeerLost)


def be_killed(group):
    unattended = receiver(group, 0, 2, window=1)
    lane = sender(group, 0, 1)
    lane.send([own_number()])
    for _ in range(3):
        lane.send([torch.full((5,), 7, dtype=torch.uint8)])
    time.sleep(60)
    unattended.abort()


def a_stopped_peer_is_a_stall(group):
    incoming, outgoing = receiver(group, 1, 1), sender(group, 1, 2, deadline=1.0)
    number = number_from(incoming)
    os.kill(number, signal.SIGSTOP)
    with raises(StallError, "rank 1", "lane 2", "1 s"):
        for _ in range(20):
            outgoing.send([zeros(300_000)])
    outgoing.abort()
    incoming.abort()


def be_stopped(group):
    incoming = receiver(group, 0, 2)
    sender(group, 0, 1).send([own_number()])
    while True:
        incoming.receive()


CASES = (a_killed_peer_is_lost, a_stopped_peer_is_a_stall)
