"""Eight clients at once on one server: each trains as if it were alone, none is kept waiting, and nothing piles up."""

import gc
import os
import threading

import pytest
import torch

from links.net.ends import until
from remote.crowd import Crowd, noisy_client, noisy_middle, train
from remote.models import batch, offer, sgd
from remote.strangers import Insider, client_of, memory, verify_same_states
from thinpipe.errors import BusyError
from thinpipe.remote.offer import Offer
from thinpipe.remote.saved import Store
from thinpipe.remote.server import Server

CLIENTS = 8
STEPS = int(os.environ.get("THINPIPE_CROWD", "130"))
"""Of each client; with the default, 1,040 in all."""


@pytest.fixture
def crowded(tmp_path):
    offers = {"noisy": Offer(noisy_middle, sgd), "middle": offer()}
    with Server(offers, listen="127.0.0.1:0", folder=tmp_path / "server", max_clients=CLIENTS) as server:
        yield server


def settled():
    gc.collect()
    return memory()


@pytest.mark.timeout(280)
def test_eight_clients_at_once_train_as_each_would_alone_in_memory_that_stays_as_it_is(crowded, tmp_path):
    crowd = Crowd(noisy_client, crowded.address, CLIENTS, STEPS)
    until(lambda: sum(crowd.done) >= CLIENTS * STEPS // 6, 60.0)
    before = settled()
    assert len(crowded.statuses()) == CLIENTS
    results = crowd.results()
    assert settled() - before < 8e6
    when_the_first_was_done = min((at_first for *_, at_first in results), key=sum)
    assert min(when_the_first_was_done) > STEPS / 3, "somebody was kept waiting"
    assert crowded.counters.read() == {"refused": 0, "broken": 0, "steps": CLIENTS * STEPS, "replays": 0}
    for number, (losses, session, weights, _) in enumerate(results):
        with noisy_client(crowded, number) as alone:
            assert train(alone, number, STEPS) == losses
        verify_same_states(alone.state_dict(), {name: torch.tensor(values) for name, values in weights.items()})
        stores = [Store(tmp_path / "server" / name).load(STEPS) for name in (alone.session, session)]
        verify_same_states(stores[0].tensors, stores[1].tensors)


def test_the_ninth_is_refused_with_the_limit_and_welcomed_when_one_has_left(crowded):
    clients = [client_of(crowded) for _ in range(CLIENTS)]
    with pytest.raises(BusyError, match=r"the server is full: 8 clients are connected.*--max-clients"):
        client_of(crowded)
    clients[3].close()
    clients[3] = client_of(crowded)
    for client in clients:
        client.step(*batch(0))
        client.close()
    assert crowded.counters.refused == 1


def test_twenty_in_a_row_on_a_server_for_one_each_find_the_place_free(tmp_path):
    # A client that has left was counted until its connection was gone, a moment too long for the next one.
    with Server({"middle": offer()}, listen="127.0.0.1:0", max_clients=1) as server:
        for _ in range(20):
            with client_of(server) as client:
                client.step(*batch(0))
        # Without a folder they are kept in memory, but not all of them.
        assert len(server._shelves) <= 5


def come_together(server, count):
    """Has strangers come all at once; tells who was welcomed, and what the others were told."""
    came, refused = [], []

    def come():
        try:
            came.append(Insider(server, session=os.urandom(16).hex()))
        except AssertionError as error:
            refused.append(str(error))

    crowd = [threading.Thread(target=come) for _ in range(count)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    return came, refused


def test_a_newcomer_does_not_push_out_who_is_about_to_come_in(crowded):
    # A session was taken for one that is away until its connection had been welcomed.
    for _ in range(3):
        came, refused = come_together(crowded, 2 * CLIENTS)
        assert len(came) == len(refused) == CLIENTS
        assert all("the server is full" in text for text in refused)
        assert sorted(status.state for status in crowded.statuses()) == ["connected"] * CLIENTS
        for insider in came:
            insider.channel.tell("leave", 0)
            insider.end()


def test_who_waits_for_a_place_gets_it_as_soon_as_there_is_one(crowded):
    clients = [client_of(crowded) for _ in range(CLIENTS)]
    late = clients.pop()
    late.step(*batch(0))
    late._lose()
    until(lambda: any(status.state == "away" for status in crowded.statuses()))
    clients.append(client_of(crowded))  # takes the place of the one that is away
    waiting = threading.Thread(target=late.step, args=batch(1))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    clients.pop(0).close()
    waiting.join(10)
    assert late.committed == 2
    for client in (*clients, late):
        client.close()
