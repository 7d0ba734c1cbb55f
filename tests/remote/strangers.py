"""Clients that mean no good, and the training beside them that must not notice."""

import gc
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch.utils._pytree import tree_flatten

import thinpipe
from links.net.ends import WAIT, Taken, until
from remote.models import WIDE, batch, ends, loss_fn, sgd
from thinpipe.codecs import codec
from thinpipe.links import Meter
from thinpipe.links.net import dial
from thinpipe.remote.client import Client
from thinpipe.remote.protocol import BEGIN, HELLO, PROTOCOL, WELCOME, Begin, Hello
from thinpipe.remote.saved import Store
from thinpipe.remote.terms import Terms
from thinpipe.runtime.frame import Frame
from thinpipe.runtime.heap import return_memory
from thinpipe.runtime.parcel import Cargo

UP, DOWN = 0, 3
"""The lanes to a server: activations of the first cut, gradients of the second."""


def memory():
    """The memory of this process, in bytes, without what is kept for later: another test may have chosen that."""
    return_memory()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def threads():
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("thinpipe "))


def client_of(server, *, parts=None, offer="middle", **options):
    first, last = ends() if parts is None else parts
    return Client(first, last, connect=server.address, offer=offer, loss_fn=loss_fn, optimizer=sgd, **options)


class Training:
    """A good client, which trains until it is told to stop."""

    def __init__(self, server, *, pause=0.02, **options):
        self.losses, self.failure = [], None
        self._pause, self._stop = pause, threading.Event()
        self.client = client_of(server, chunks=3, every=20, **options)
        self._thread = threading.Thread(target=self._train)
        self._thread.start()

    def _train(self):
        try:
            while not self._stop.wait(self._pause):
                self.losses.append(self.client.step(*batch(len(self.losses), 11)).item())
        except BaseException as error:
            self.failure = error

    def goes_on(self, steps=3):
        """Waits for some more steps."""
        goal = len(self.losses) + steps
        until(lambda: len(self.losses) >= goal or self.failure is not None)
        assert self.failure is None

    def stop(self):
        self._stop.set()
        self._thread.join()
        self.client.close()
        assert self.failure is None


def states(client, folder):
    """What both sides had saved when a client left."""
    store = Store(folder / client.session)
    saved = store.load(client.committed)
    return {**client.state_dict(), **{f"server {name}": x for name, x in saved.tensors.items()}}


def verify_same_states(some, others):
    assert some.keys() == others.keys()
    for name, tensor in some.items():
        assert torch.equal(tensor, others[name]), name


@contextmanager
def nothing_left_behind(*, megabytes=60):
    """Sees that threads end, and that memory stays where it was."""
    before, began = threads(), memory()
    yield
    # A thread of a lane that is being made or ended beside us may come and go; none stays.
    end, grown = time.monotonic() + 15, 0.0
    while (left := len(threads()) - len(before)) > 0 or (grown := (memory() - began) / 1e6) > megabytes:
        assert time.monotonic() < end, f"{left} more threads: {threads()}; {grown:.0f} MB more"
        gc.collect()
        time.sleep(0.05)


# -- who knows the protocol --------------------------------------------------------------------------------------------


def hello_of(**changes):
    """What an honest client says first, but for some changes."""
    terms = Terms(2, "1f1b", 1, ((None, None), (None, None)), 0, deferred_batch_norm=False, every=50)
    hello = Hello(
        protocol=PROTOCOL,
        version=thinpipe.__version__,
        offer="middle",
        session="5" * 32,
        known=False,
        terms=terms,
        inputs=None,
        at=0,
        steps=[0],
        commit=None,
        bandwidth=None,
        trace=False,
    ).to_json()
    for name, value in changes.items():
        (hello["terms"] if name in hello["terms"] else hello)[name] = value
    return hello


def begin_of(**changes):
    return asdict(Begin(number=1, step=1, rows=[3, 3], train=True, norm=False)) | changes


def answer_to(server, *words, keys=None):
    """Says some words to a server; gives what it answers last, a word or the reason why it hung up."""
    channel = dial(server.address, keys=keys, silence=30.0)
    try:
        for word in words:
            channel.tell(*word)
        said = None
        while True:
            try:
                said = channel.hear(WAIT)
            except Exception as error:
                return said if said is not None and said[0] in ("refused", "failed") else error
    finally:
        channel.close()


class Insider:
    """Somebody who was welcomed."""

    def __init__(self, server, *, keys=None, **changes):
        self.channel = dial(server.address, keys=keys, silence=30.0)
        self.lanes = {lane: self.channel.sender(lane, Meter()) for lane in (UP, DOWN, 7)}
        self.gradients, self.activations = Taken(self.channel, 1), Taken(self.channel, 2)
        self.channel.tell(HELLO, hello_of(**changes))
        word, value = self.channel.hear(WAIT)
        assert word == WELCOME, value

    def begin(self, **changes):
        self.channel.tell(BEGIN, begin_of(**changes))
        time.sleep(0.05)  # words overtake data, but not by much

    def send(self, lane, data):
        self.lanes[lane].send([data if isinstance(data, torch.Tensor) else torch.tensor(list(data), dtype=torch.uint8)])

    def end(self):
        """What the server says before it hangs up."""
        failed = None
        try:
            while True:
                word, value = self.channel.hear(WAIT)
                failed = value if word == "failed" else failed
        except Exception as error:
            return failed or str(error)
        finally:
            self.channel.close()


def frame_of(value, *, cargo=Cargo.ACTIVATION, step=1, edge=0, micro=0, spec="none", wants=True):
    """A message as a half sends it."""
    leaves, tree = tree_flatten(value)
    packets = [codec(spec).encode(x) if isinstance(x, torch.Tensor) else x for x in leaves]
    wanted = [wants and isinstance(x, torch.Tensor) for x in leaves] if cargo is Cargo.ACTIVATION else []
    return torch.cat(Frame(cargo, step, edge, micro, packets, tree, wanted).parts())


def activation(rows=3, wide=WIDE, **options):
    return frame_of(torch.randn(rows, wide), **options)


def forged(spec, shape, *, honest=(2, 3, 16, 16), micro=0):
    """An activation whose packet claims another shape than it was made of."""
    packet = codec(spec).encode(torch.randn(honest))
    packet = replace(packet, shape=torch.Size(shape), order=tuple(range(len(shape))))
    return torch.cat(Frame(Cargo.ACTIVATION, 1, 0, micro, [packet], tree_flatten(0)[1], [True]).parts())


def gradient(rows=3, wide=WIDE, **options):
    return frame_of([torch.randn(rows, wide)], cargo=Cargo.GRADIENT, edge=1, **options)
