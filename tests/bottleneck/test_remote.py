"""A client and a server with bottlenecks between them, each of which made its halves by itself."""

import copy

import pytest
import torch
from torch import nn

from bottleneck.models import batch, chained, cut, example, images, loss_fn
from thinpipe.bottleneck import Bottleneck, decay, decaying_offer, insert
from thinpipe.remote.client import Client
from thinpipe.remote.offer import Offer
from thinpipe.remote.server import Server


def sgd(weights):
    return torch.optim.SGD(weights, lr=0.1, momentum=0.9)


FIRST = Bottleneck("conv:5k3s3", (4, 10, 10), cut=0, seed=7, dtype=torch.float64)
SECOND = Bottleneck("conv:6k2s2+4", (8, 5, 5), cut=1, seed=7, dtype=torch.float64)


def middle():
    """What the server makes, without the client's ends: of texts, shapes and a seed."""
    return SECOND.on_sender(FIRST.on_receiver(cut(images(norm=False))[1]))


def test_training_with_a_server_is_training_on_one_device():
    whole = chained(insert(cut(images(norm=False)), "conv:5k3s3/conv:6k2s2+4", example=example(), seed=7))
    optimizer = sgd(whole.parameters())
    first, _, last = cut(images(norm=False))
    first, last = FIRST.on_sender(first), SECOND.on_receiver(last)
    small = torch.zeros(1, *FIRST.wire, dtype=torch.float64)
    with Server({"middle": Offer(make=middle, optimizer=sgd, example=small)}, listen="127.0.0.1:0") as server:
        options = {"connect": server.address, "offer": "middle", "loss_fn": loss_fn, "optimizer": sgd, "chunks": 3}
        with Client(first, last, example=example(), **options) as client:
            for step in range(4):
                x, y = batch(7, seed=step)
                expected = loss_fn(whole(x), y)
                optimizer.zero_grad()
                expected.backward()
                optimizer.step()
                torch.testing.assert_close(client.step(x, y).double(), expected.detach())
                # What goes there at one cut comes back at the other, and so do the gradients.
                elements = torch.Size(FIRST.wire).numel() + torch.Size(SECOND.wire).numel()
                assert client.cost.raw_sent == client.cost.raw_received == 7 * 8 * elements
            torch.testing.assert_close(client.evaluate(x), whole(x).detach())


def test_codecs_go_on_top():
    first, _, last = cut(images(norm=False))
    with Server({"middle": Offer(make=middle, optimizer=sgd)}, listen="127.0.0.1:0") as server:
        options = {"connect": server.address, "offer": "middle", "loss_fn": loss_fn, "optimizer": sgd, "chunks": 2}
        packers = {"codec": "had:4", "grad_codec": "had:4"}
        with Client(FIRST.on_sender(first), SECOND.on_receiver(last), **options, **packers) as client:
            losses = [client.step(*batch(16, seed=1)).item() for _ in range(12)]
            assert losses[-1] < losses[0] and client.cost.sent < client.cost.raw_sent


def test_a_rank_decays_on_both_machines_at_the_same_step():
    torch.manual_seed(0)
    text = "linear:8,decay=0.5@2..4"
    parts = [nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 3)]
    there, back = (Bottleneck(text, (8,), cut=number) for number in (0, 1))

    def make():
        return back.on_sender(there.on_receiver(copy.deepcopy(parts[1])))

    offer = decaying_offer(Offer(make=make, optimizer=sgd))
    first, last = there.on_sender(parts[0]), back.on_receiver(parts[2])
    with Server({"middle": offer}, listen="127.0.0.1:0") as server:
        options = {"connect": server.address, "offer": "middle", "loss_fn": loss_fn, "optimizer": sgd, "chunks": 2}
        with Client(first, last, **options) as client:
            decay(client.optimizer, nn.ModuleList([first, last]))
            sent = []
            for _ in range(6):
                client.step(torch.randn(6, 4), torch.randint(3, (6,)))
                sent.append(client.cost.raw_sent)
    assert sent == [6 * 4 * 2 * rank for rank in (8, 8, 4, 4, 2, 2)]


@pytest.mark.parametrize("other", [Bottleneck("conv:5k2s2", (4, 10, 10), dtype=torch.float64), None])
def test_a_client_with_another_bottleneck_is_refused_before_anything_is_computed(other):
    first, _, last = cut(images(norm=False))
    small = torch.zeros(1, *FIRST.wire, dtype=torch.float64)
    with Server({"middle": Offer(make=middle, optimizer=sgd, example=small)}, listen="127.0.0.1:0") as server:
        options = {"connect": server.address, "offer": "middle", "loss_fn": loss_fn, "optimizer": sgd}
        with pytest.raises(Exception, match="5, 3, 3"):
            Client(
                first if other is None else other.on_sender(first),
                SECOND.on_receiver(last),
                example=example(),
                **options,
            )
