"""What one end sees when the process of the other is killed, stopped, or just ends."""

import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from links.net.ends import WAIT, Taken, random_bytes, server
from thinpipe.errors import PeerLost, StallError
from thinpipe.links import Meter

PEER, TESTS = Path(__file__).with_name("peer.py"), str(Path(__file__).parents[2])


@contextmanager
def client_process(address, what):
    process = subprocess.Popen(
        [sys.executable, str(PEER), address, what], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": TESTS}
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_messages_come_back_from_another_process():
    with server(silence=30.0) as hub, client_process(hub.address, "echo"):
        channel = hub.accepted.get(timeout=WAIT)
        taken, lane = Taken(channel, 1), channel.sender(1, Meter())
        for k, size in enumerate((0, 1, 262_145, 20_000_000, 5)):
            lane.send([random_bytes(size, seed=k)])
            assert torch.equal(taken.next(), random_bytes(size, seed=k))


def test_a_killed_client_is_lost_at_once_and_nobody_else_is():
    with server() as hub, client_process(hub.address, "echo") as process:
        channel = hub.accepted.get(timeout=WAIT)
        good, beside = hub.meet()
        taken = Taken(channel, 1)
        assert channel.hear(WAIT) == ("hello", None)
        began = time.monotonic()
        process.kill()
        with pytest.raises(PeerLost, match=r"the connection to the client at 127\.0\.0\.1:\d+ broke"):
            channel.hear(WAIT)
        assert isinstance(taken.failures.get(timeout=WAIT), PeerLost)
        assert time.monotonic() - began < 1.0
        good.tell("here")
        assert beside.hear(WAIT) == ("here", None)


def test_a_stopped_client_is_a_stall_after_the_silence():
    with server(silence=1.0) as hub, client_process(hub.address, "wait") as process:
        channel = hub.accepted.get(timeout=WAIT)
        good, beside = hub.meet()
        assert channel.hear(WAIT) == ("hello", None)
        began = time.monotonic()
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(StallError, match="gave no sign of life for 1 s"):
            channel.hear(WAIT)
        assert 0.5 < time.monotonic() - began < 2.0
        good.tell("here")
        assert beside.hear(WAIT) == ("here", None)


def test_a_sender_to_a_stopped_client_does_not_wait_for_ever():
    with server(silence=1.0) as hub, client_process(hub.address, "wait") as process:
        channel = hub.accepted.get(timeout=WAIT)
        process.send_signal(signal.SIGSTOP)
        lane, began = channel.sender(1, Meter()), time.monotonic()
        with pytest.raises(StallError):
            for _ in range(100):
                lane.send([random_bytes(1_000_000)])
        assert time.monotonic() - began < 3.0


def test_a_process_that_ends_without_closing_ends_and_is_lost():
    with server() as hub, client_process(hub.address, "leave") as process:
        channel = hub.accepted.get(timeout=WAIT)
        assert channel.hear(WAIT) == ("hello", None)
        channel.tell("leave")
        with pytest.raises(PeerLost):
            channel.hear(WAIT)
        assert process.wait(WAIT) == 0
