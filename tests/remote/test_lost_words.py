"""The connection breaks at the worst moments: a step happens once all the same."""

import pytest
import torch

from remote.models import batch, ends, loss_fn, offer, sgd
from thinpipe.errors import PeerLost
from thinpipe.remote.client import Client
from thinpipe.remote.protocol import BEGIN, COMMIT, SAVED
from thinpipe.remote.server import Server


class Unlucky(Client):
    """Loses its connection just before or just after it says a certain word in a certain step."""

    worst: tuple[str, int, bool] | None = None

    def _told(self, word, value):
        if self.worst is not None and self.worst[:2] == (word, self.committed):
            after, self.worst = self.worst[2], None
            if after:
                super()._told(word, value)
                self._half.wires.post.flush()
            self._channel.break_off(PeerLost("the cable was pulled"))
        super()._told(word, value)


def trained(server, worst):
    first, last = ends(dropout=0.2)
    options = {"connect": server.address, "offer": "middle", "loss_fn": loss_fn, "optimizer": sgd, "every": 2}
    with Unlucky(first, last, chunks=2, codec="ef(block:4)", give_up=10.0, **options) as client:
        client.worst = worst
        losses = [client.step(*batch(step)).item() for step in range(5)]
        assert client.worst is None and client.committed == 5
        return losses, client.evaluate(batch(9)[0]), {name: x.clone() for name, x in client.state_dict().items()}


@pytest.fixture(scope="module")
def server():
    with Server({"middle": offer(dropout=0.2)}, listen="127.0.0.1:0") as running:
        yield running


@pytest.mark.parametrize("after", [False, True], ids=["unsaid", "said"])
@pytest.mark.parametrize(("word", "step"), [(BEGIN, 2), (COMMIT, 3), (COMMIT, 5), (SAVED, 4)])
def test_a_connection_that_breaks_around_a_word_changes_nothing(server, word, step, after):
    lucky = trained(server, None)
    losses, outputs, state = trained(server, (word, step, after))
    assert losses == lucky[0]
    assert torch.equal(outputs, lucky[1])
    torch.testing.assert_close(state, lucky[2], rtol=0, atol=0)
