"""Clients and servers as processes that can be killed and begun again; started from one that has imported torch."""

import logging
import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path

import torch

from remote.models import batch, ends, loss_fn, middle, sgd
from thinpipe.remote.client import Client
from thinpipe.remote.offer import Offer
from thinpipe.remote.server import Server

SLOW = 0.003


class Slow(torch.nn.Module):
    """Takes its time, so that a fault falls into the middle of something."""

    def forward(self, x):
        time.sleep(SLOW)
        return x


def slow_middle():
    return torch.nn.Sequential(*middle(dropout=0.2), Slow())


def serve(address, folder):
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    offers = {"middle": Offer(make=slow_middle, optimizer=sgd)}
    server = Server(offers, listen=address, folder=folder, silence=1.0)
    signal.signal(signal.SIGTERM, lambda *_: server.close())
    server.serve_forever()


def train(address, folder, steps, journal, options):
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    first, last = ends(dropout=0.2)
    # One life keeps its batches, another asks for them again: nobody can tell which.
    again = (lambda step: batch(step, 11)) if os.getpid() % 2 else None
    client = Client(
        first,
        last,
        connect=address,
        offer="middle",
        loss_fn=loss_fn,
        optimizer=sgd,
        folder=folder,
        silence=1.0,
        give_up=60.0,
        batches=again,
        **options,
    )
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    with client, Path(journal).open("a") as lines:
        while client.committed < steps and not stopped:
            loss = client.step(*batch(client.committed, 11))
            lines.write(f"{client.committed} {loss.item()!r}\n")
            lines.flush()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Life:
    """A process that is begun, killed, and begun again."""

    def __init__(self, target, *args):
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["thinpipe.remote.client", "thinpipe.remote.server"])
        self._target, self._args = target, args
        self.begin()

    def begin(self):
        self.process = self._context.Process(target=self._target, args=self._args, daemon=True)
        self.process.start()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def terminate(self):
        os.kill(self.process.pid, signal.SIGTERM)
        self.process.join(20)
        assert self.process.exitcode is not None, "SIGTERM was not heard"

    @property
    def is_alive(self):
        return self.process.is_alive()
