"""What a client tells its user while it cannot reach its server."""

import threading
import time

import pytest

from remote.models import batch, ends, loss_fn, offer, sgd
from thinpipe.errors import PeerLost
from thinpipe.remote.client import Client
from thinpipe.remote.server import Server
from thinpipe.remote.troubles import Troubles


def client_of(address, **options):
    first, last = ends()
    return Client(first, last, connect=address, offer="middle", loss_fn=loss_fn, optimizer=sgd, **options)


def lines_of(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "thinpipe"]


def until(true, seconds=30.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


class Step(threading.Thread):
    """A step that is on its way while the server is away."""

    def __init__(self, client, number):
        super().__init__(daemon=True)
        self.client, self.number = client, number
        self.start()

    def run(self):
        self.client.step(*batch(self.number))


def test_a_server_that_is_away_is_reported_once_and_again_when_it_is_back(tmp_path, caplog):
    with Server({"middle": offer()}, listen="127.0.0.1:0", folder=tmp_path) as server:
        address = server.address
        client = client_of(address, folder=tmp_path / "client", give_up=60.0)
        client.step(*batch(0))
    caplog.clear()
    step = Step(client, 1)
    time.sleep(2.0)  # five redials
    assert step.is_alive()
    before = lines_of(caplog)
    assert sum("no server listens at" in line for line in before) == 1, before
    assert any(line.endswith("trying again for up to 60 s") for line in before)
    with Server({"middle": offer()}, listen=address, folder=tmp_path):
        step.join(30)
        assert client.committed == 2
        client.close()
    after = lines_of(caplog)[len(before) :]
    assert sum("step 2: connected again after" in line for line in after) == 1, after


def test_a_name_that_is_not_resolved_is_refused_at_first_and_waited_for_in_a_training(tmp_path, caplog):
    with pytest.raises(PeerLost, match=r"the name 'name\.invalid' cannot be resolved"):
        client_of("name.invalid:5555")
    with Server({"middle": offer()}, listen="127.0.0.1:0", folder=tmp_path / "server") as server:
        address = server.address
        client = client_of(address, folder=tmp_path / "client")
        client.step(*batch(0))
        client.close()
        # The session is known to the server; but a name that is wrong from the start is not waited for.
        with pytest.raises(PeerLost, match=r"the name 'name\.invalid' cannot be resolved"):
            client_of("name.invalid:5555", folder=tmp_path / "client")
        client = client_of(address, folder=tmp_path / "client")
        client.address = "name.invalid:5555"  # as for a laptop that wakes up, whose names are not there yet
    with Server({"middle": offer()}, listen=address, folder=tmp_path / "server"):
        step = Step(client, 1)
        until(lambda: any("cannot be resolved" in line for line in lines_of(caplog)))
        assert step.is_alive()
        client.address = address
        step.join(30)
        assert client.committed == 2
        client.close()


def test_reminders_come_less_and_less_often_and_a_new_reason_at_once(monkeypatch):
    clock = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    troubles = Troubles(600.0)
    lines = {}
    for clock in range(600):
        why = "the name is not known" if clock == 100 else "no server listens"
        if (line := troubles.lost(PeerLost(why))) is not None:
            lines[clock] = line
    assert list(lines) == [0, 10, 20, 40, 80, 100, 160, 320]
    assert lines[0] == "no server listens; trying again for up to 10 min"
    assert lines[40] == "still trying, for 40 s: no server listens"
    assert lines[100] == "still trying, for 100 s: the name is not known"
    assert lines[320] == "still trying, for 5 min: no server listens"
    assert troubles.connected() == "connected again after 10 min"
    assert troubles.connected() is None
    clock += 1
    assert troubles.lost(PeerLost("no server listens")) == "no server listens; trying again for up to 10 min"
