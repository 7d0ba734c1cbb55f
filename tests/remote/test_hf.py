"""A transformers classifier with its middle at a server: the mask goes with it, and one token comes back."""

import copy

import pytest
import torch

from hf_support import batch, loss_of, make, quiet
from thinpipe import split
from thinpipe.models.hf import run_uncut
from thinpipe.remote.client import Client
from thinpipe.remote.offer import Offer
from thinpipe.remote.server import Server


def sgd(weights):
    return torch.optim.SGD(weights, lr=0.1)


def cut(model):
    return split(model, at=["encoder.layer.1", "pooler" if model.config.model_type == "bert" else "classifier"])


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_a_classifier_trains_with_a_server_as_it_does_alone(family):
    model = quiet(make(family))
    whole, loss = copy.deepcopy(model), loss_of(family)
    offers = {"middle": Offer(make=lambda: cut(copy.deepcopy(model))[1], optimizer=sgd)}
    ends = cut(copy.deepcopy(model))
    optimizer = sgd(whole.parameters())
    with Server(offers, listen="127.0.0.1:0") as server:
        options = {"connect": server.address, "offer": "middle", "loss_fn": loss, "optimizer": sgd, "chunks": 2}
        with Client(ends[0], ends[2], **options) as client:
            for seed in range(3):
                torch.manual_seed(seed)
                inputs, targets = batch(family, 6)
                expected = loss(run_uncut(whole, inputs), targets)
                optimizer.zero_grad()
                expected.backward()
                optimizer.step()
                torch.testing.assert_close(client.step(inputs, targets).double(), expected.detach().double())
            torch.testing.assert_close(client.evaluate(inputs), run_uncut(whole.eval(), inputs).detach())
            hidden = model.config.hidden_size
            one_way = 6 * hidden * 8
            # Hidden states of all tokens and a mask go there, with the gradient of one token; the same comes back.
            assert client.cost.raw_received < client.cost.raw_sent
            assert (client.cost.raw_received - one_way) % one_way == 0
