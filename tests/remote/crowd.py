"""Clients in processes of their own, which begin together."""

import multiprocessing

import torch
from torch import nn

from remote.models import batch, ends, middle
from remote.strangers import client_of

_context = multiprocessing.get_context("forkserver")


class Noise(nn.Module):
    """Draws by an operator that takes no generator: the default one is lent to it."""

    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)


def noisy_middle():
    return nn.Sequential(*middle(dropout=0.2), Noise())


def noisy_client(server, number):
    parts = ends(number, dropout=0.2)
    return client_of(server, parts=parts, offer="noisy", seed=number, chunks=2, every=25, codec="ef(block:4)")


def train(client, number, steps, told=lambda step: None):
    losses = []
    for step in range(steps):
        losses.append(client.step(*batch(100 * number + step, 11)).item())
        told(step + 1)
    return losses


class Crowd:
    """Some clients, each with its number.

    Attributes:
        done: the steps that each has done.
        at_first: the same, when the first of them was done with all.
    """

    def __init__(self, make, address, count, steps):
        _context.set_forkserver_preload(["thinpipe.remote.client", "remote.strangers"])
        self.address = address
        self.done = _context.Array("i", count)
        self._gate = _context.Barrier(count)
        self._pipes, self._processes = [], []
        for number in range(count):
            near, far = _context.Pipe()
            args = (make, address, number, steps, self._gate, self.done, far)
            process = _context.Process(target=_live, args=args, daemon=True)
            process.start()
            self._pipes.append(near)
            self._processes.append(process)

    def results(self):
        """What each has to show in the end: its losses, and its session's name with its weights."""
        found = [pipe.recv() for pipe in self._pipes]
        for process in self._processes:
            process.join()
            assert process.exitcode == 0
        return found


class _Address:
    def __init__(self, address):
        self.address = address


def _live(make, address, number, steps, gate, done, pipe):
    torch.set_num_threads(1)
    at_first = []

    def told(step):
        done[number] = step
        if step == steps:
            at_first.extend(done)

    gate.wait()
    with make(_Address(address), number) as client:
        losses = train(client, number, steps, told)
    weights = {name: x.tolist() for name, x in client.state_dict().items()}
    pipe.send((losses, client.session, weights, at_first))
