"""A client and a server train as one device does."""

import pytest
import torch
from remote.models import batch, ends, loss_fn, offer, seeded_middle, sgd
from torch import nn

from thinpipe.remote.client import Client
from thinpipe.remote.server import Server


@pytest.fixture(scope="module")
def server():
    with Server({"middle": offer(), "dropping": offer(dropout=0.3)}, listen="127.0.0.1:0", max_clients=2) as running:
        yield running


def client_of(server, *, seed=1, dropout=0.0, name="middle", **options):
    first, last = ends(seed, dropout=dropout)
    return Client(
        first, last, connect=server.address, offer=name, loss_fn=loss_fn, optimizer=sgd, example=torch.zeros(1, 4), **options
    )


def one_device(steps, chunks, *, rows=12):
    """Trains the whole model, micro-batch by micro-batch."""
    first, last = ends()
    model = nn.Sequential(first, seeded_middle(), last)
    optimizer = sgd(model.parameters())
    losses = []
    for step in range(steps):
        x, y = batch(step, rows)
        total = 0.0
        for a, b in zip(x.tensor_split(chunks), y.tensor_split(chunks), strict=True):
            if len(a) == 0:
                continue
            loss = loss_fn(model(a), b) * (len(a) / len(x))
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return model, losses


@pytest.mark.parametrize(("chunks", "schedule"), [(1, "1f1b"), (4, "1f1b"), (3, "gpipe"), (4, "zb")])
def test_training_with_a_server_is_training_on_one_device(server, chunks, schedule):
    model, expected = one_device(5, chunks)
    with client_of(server, chunks=chunks, schedule=schedule) as client:
        losses = [client.step(*batch(step)).item() for step in range(5)]
        assert losses == pytest.approx(expected, rel=1e-5)
        for (name, own), whole in zip(client.first.state_dict().items(), model[0].state_dict().values(), strict=True):
            torch.testing.assert_close(own, whole, msg=name)
        x, y = batch(99)
        model.eval()
        torch.testing.assert_close(client.evaluate(x), model(x).detach())
        torch.testing.assert_close(client.evaluate(x, y), loss_fn(model(x), y).detach())
        assert client.committed == 5
