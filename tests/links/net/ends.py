"""Two ends of a connection, and what their tests share."""

import threading
import time
from contextlib import contextmanager
from queue import Queue

import torch

from thinpipe.links import Meter
from thinpipe.links.net import ClientKeys, Listener, ServerKeys, dial, make_keys

WAIT = 10.0


class Server:
    """A listener on a free port, and the channels of its clients in the order they came."""

    def __init__(self, address="127.0.0.1:0", *, keys=None, silence=5.0, **options):
        self.accepted = Queue()
        self.listener = Listener(address, keys=keys, accepted=self.accepted.put, silence=silence, **options)
        self.address = self.listener.address

    def meet(self, *, keys=None, silence=5.0, **options):
        """Connects a client, and gives both ends, once they have greeted each other."""
        client = dial(self.address, keys=keys, silence=silence, **options)
        client.tell("hello")
        channel = self.accepted.get(timeout=WAIT)
        assert channel.hear(WAIT) == ("hello", None)
        return client, channel


@contextmanager
def server(*args, **options):
    """Runs a server, and sees that nothing of it is left."""
    made = Server(*args, **options)
    try:
        yield made
    finally:
        made.listener.close()


class Taken:
    """What came on a lane."""

    def __init__(self, channel, lane, *, most=2**26, window=1000, pace=0.0):
        self.messages, self.failures, self.meter = Queue(), Queue(), Meter()
        self._pace = pace
        self.lane = channel.receiver(
            lane, most=most, window=window, meter=self.meter, take=self._take, failed=self.failures.put
        )

    def _take(self, message):
        time.sleep(self._pace)
        self.messages.put(message)

    def next(self, timeout=WAIT):
        return self.messages.get(timeout=timeout)


def random_bytes(size, seed=0):
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def all_keys(folder, *names):
    """Makes keys for a server and its clients."""
    own = make_keys(folder, "server")
    pairs = {name: make_keys(folder, name) for name in names}
    clients = {name: ClientKeys(pair, own.public) for name, pair in pairs.items()}
    return ServerKeys(own, {pair.public: name for name, pair in pairs.items()}), clients


def threads():
    # Those with a hyphen are pools of kernels and stages, which stay.
    return [x.name for x in threading.enumerate() if x.name.startswith("thinpipe ") and "throttle" not in x.name]


def until(true, seconds=WAIT):
    """Waits for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)
