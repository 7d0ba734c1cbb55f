"""What the processes of the lanes' tests share."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from thinpipe.links import Meter, ReceiveLane, SendLane

MOST = 8 << 20


def sender(group, peer, lane, **options):
    return SendLane(group, peer, lane, **{"deadline": 20, "meter": Meter(), **options})


def receiver(group, peer, lane, **options):
    return ReceiveLane(group, peer, lane, **{"most": MOST, "deadline": 20, "meter": Meter(), **options})


def zeros(size):
    return torch.zeros(size, dtype=torch.uint8)


def content(size, *seed):
    """The same bytes for the same seed, in every process."""
    raw = bytearray(random.Random(repr(seed)).randbytes(size))
    return torch.frombuffer(raw, dtype=torch.uint8) if size else zeros(0)


@contextmanager
def raises(error, *words, within=2.0):
    start = time.monotonic()
    try:
        yield
    except error as raised:
        took = time.monotonic() - start
        assert took < within, f"{error.__name__} after {took:.2f} s"
        assert all(word in str(raised) for word in words), str(raised)
    else:
        raise AssertionError(f"no {error.__name__}")


def exchange(group, me, lane, sizes, **options):
    """Sends and receives messages of these sizes at once, in two threads, and compares every byte."""
    sent, received = Meter(), Meter()
    outgoing = sender(group, 1 - me, lane, meter=sent, **options)
    incoming = receiver(group, 1 - me, lane, meter=received, **options)

    def send_all():
        for i, size in enumerate(sizes):
            whole = content(size, me, lane, i)
            cuts = sorted(random.Random(i).choices(range(size + 1), k=2))
            outgoing.send([whole[: cuts[0]], whole[cuts[0] : cuts[1]], whole[cuts[1] :]])
        outgoing.flush()

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_all)
        for i, size in enumerate(sizes):
            got, due = incoming.receive(), content(size, 1 - me, lane, i)
            assert got.dtype == torch.uint8 and got.shape == due.shape and torch.equal(got, due), f"message {i}"
        sending.result()
    return sent.snapshot(), received.snapshot()
