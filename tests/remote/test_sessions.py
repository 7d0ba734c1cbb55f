"""The life of a session: put away, taken up again, taken over, and what happens when it cannot be found."""

import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
import torch

from links.net.ends import WAIT, until
from remote.models import WIDE, batch, ends, offer
from remote.proxy import Cable
from remote.strangers import UP, Insider, activation, client_of, states, verify_same_states
from thinpipe.errors import BusyError, DisagreementError, PeerLost, RefusedError
from thinpipe.remote.saved import Store
from thinpipe.remote.server import Server
from thinpipe.trace import read_chrome

OPTIONS = {"chunks": 2, "every": 5, "codec": "ef(block:4)", "offer": "dropping"}


def serve(folder=None, **options):
    offers = {"dropping": offer(dropout=0.2), "middle": offer()}
    return Server(offers, folder=folder, **{"listen": "127.0.0.1:0"} | options)


def steps_of(client, steps):
    return [client.step(*batch(client.committed)).item() for _ in range(steps)]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Twelve steps that nothing happened to: their losses, and what both sides have in the end."""
    torch.set_num_threads(1)  # as in every test: with another number, sums have other last bits
    folder = tmp_path_factory.mktemp("calm")
    with serve(folder) as server, client_of(server, **OPTIONS) as client:
        losses = steps_of(client, 12)
    return losses, states(client, folder)


# -- put away ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_folder", [True, False])
def test_an_idle_session_is_put_away_and_taken_up_again(tmp_path, calm, has_folder):
    with serve(tmp_path if has_folder else None, idle=1.0) as server:
        with client_of(server, **OPTIONS) as client:
            losses = steps_of(client, 7)
            until(lambda: not server.statuses())
            if has_folder:
                assert Store(tmp_path / client.session).steps()[-1] == 7
            losses += steps_of(client, 5)
        assert losses == calm[0]
        assert server.counters.read() == {"refused": 0, "broken": 0, "steps": 12, "replays": 0}
    if has_folder:
        verify_same_states(states(client, tmp_path), calm[1])


def test_a_session_whose_client_is_away_is_put_away_after_a_while(tmp_path):
    with serve(tmp_path, idle=1.0) as server:
        client = client_of(server)
        steps_of(client, 3)
        until(lambda: server.statuses()[0].step == 3)  # the last commit may be on its way
        client._lose()
        until(lambda: [status.state for status in server.statuses()] == ["away"])
        until(lambda: not server.statuses())
        assert Store(tmp_path / client.session).steps()[-1] == 3
        client.close()


@pytest.mark.parametrize("has_folder", [True, False])
def test_who_is_away_makes_room_for_a_newcomer_and_may_come_back(tmp_path, calm, has_folder):
    with serve(tmp_path if has_folder else None, max_clients=1) as server:
        first = client_of(server, **OPTIONS)
        losses = steps_of(first, 7)
        with pytest.raises(BusyError, match="full: 1 clients"):
            client_of(server)
        first._lose()
        until(lambda: server.statuses()[0].state == "away")
        with client_of(server) as second:
            assert [status.session for status in server.statuses()] == [second.session[:8]]
            steps_of(second, 2)
        losses += steps_of(first, 5)
        first.close()
    assert losses == calm[0]


# -- taken over --------------------------------------------------------------------------------------------------------


def test_of_two_connections_for_one_session_the_newer_wins(tmp_path):
    with serve(tmp_path) as server:
        older, newer = Insider(server), Insider(server)
        assert "the same session was connected again" in older.end()
        newer.begin(train=False)
        for micro in range(2):
            newer.send(UP, activation(micro=micro, wants=False))
        assert newer.channel.hear(WAIT)[0] == "ready"
        assert [status.state for status in server.statuses()] == ["connected"]
        newer.channel.close()


def test_a_newer_connection_wins_in_the_middle_of_a_step(tmp_path):
    with serve(tmp_path) as server:
        older = Insider(server)
        older.begin()
        newer = Insider(server)
        assert "the same session was connected again" in older.end()
        newer.channel.tell("leave", 0)
        newer.end()


def test_of_many_connections_for_one_session_one_is_left(tmp_path):
    with serve(tmp_path) as server:
        insiders = []

        def come():
            try:
                insiders.append(Insider(server))
            except (AssertionError, PeerLost) as error:  # refused or ended, for a newer one
                assert "the same session was connected again" in str(error)

        crowd = [threading.Thread(target=come) for _ in range(10)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        until(lambda: sum(insider.channel.failure is None for insider in insiders) == 1)
        until(lambda: len(server._threads) == 1)
        for insider in insiders:
            insider.channel.close()


def test_a_client_whose_cable_hangs_goes_on_by_a_new_connection(tmp_path, calm):
    with serve(tmp_path) as server:
        cable = Cable(server.address)
        with client_of(cable, silence=1.0, **OPTIONS) as client:
            losses = steps_of(client, 6)
            threading.Timer(0.1, cable.hang, [1.5]).start()
            time.sleep(0.2)
            losses += steps_of(client, 6)
        cable.close()
    assert losses == calm[0]
    verify_same_states(states(client, tmp_path), calm[1])


# -- closed and begun again --------------------------------------------------------------------------------------------


def test_a_server_that_is_closed_saves_and_another_goes_on(tmp_path, calm):
    with serve(tmp_path) as server:
        client = client_of(server, **OPTIONS)
        losses = steps_of(client, 7)
    assert Store(tmp_path / client.session).steps()[-1] == 7
    with serve(tmp_path, listen=server.address) as server:
        losses += steps_of(client, 5)
        client.close()
        assert server.counters.replays == 0
    assert losses == calm[0]
    verify_same_states(states(client, tmp_path), calm[1])


def test_a_server_that_is_closed_in_the_middle_of_a_training_loses_nothing(tmp_path, calm):
    server, losses = serve(tmp_path), []
    client = client_of(server, **OPTIONS)
    thread = threading.Thread(target=lambda: losses.extend(steps_of(client, 12)))
    thread.start()
    for _ in range(3):
        time.sleep(0.05)
        server.close()
        server = serve(tmp_path, listen=server.address)
    thread.join()
    client.close()
    server.close()
    assert losses == calm[0]
    verify_same_states(states(client, tmp_path), calm[1])


def test_close_ends_all_threads_and_waits_for_nobody(tmp_path):
    before = threading.active_count()
    with serve(tmp_path) as server:
        insider = Insider(server)
        insider.begin()  # and then nothing: the server is in the middle of a step
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 10
        server.close()
    assert "is being closed" in insider.end()
    until(lambda: threading.active_count() <= before)


@pytest.mark.parametrize("folders", [("none", "none"), ("one", "another"), ("one", "none")])
def test_a_server_that_lost_its_sessions_says_so(tmp_path, folders):
    before, after = (None if name == "none" else tmp_path / name for name in folders)
    with serve(before) as server:
        client = client_of(server, folder=tmp_path / "client")
        steps_of(client, 2)
    with serve(after, listen=server.address):
        with pytest.raises(RefusedError, match=r"the session is not known here.*without its folder, or with another"):
            client.step(*batch(2))
        client.close()
        with pytest.raises(RefusedError, match="the session is not known here"):
            client_of(server, folder=tmp_path / "client")
        with client_of(server, folder=tmp_path / "anew") as anew:
            steps_of(anew, 1)


# -- seen from outside -------------------------------------------------------------------------------------------------


def metrics_of(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as answer:
        return answer.read().decode()


def test_statuses_and_metrics_show_the_sessions(tmp_path):
    with serve(tmp_path, metrics=0) as server, client_of(server, **OPTIONS) as client:
        steps_of(client, 6)
        until(lambda: server.statuses()[0].step == 6)  # the last commit may be on its way
        (status,) = server.statuses()
        assert (status.name, status.session, status.offer) == ("anonymous", client.session[:8], "dropping")
        assert (status.state, status.step, status.rows) == ("connected", 6, 72)
        assert status.sent > 1000
        assert status.received > 1000
        assert status.computed > 0
        assert status.seconds_since_heard < 5
        assert client.session not in metrics_of(server)
        labels = f'client="anonymous",offer="dropping",session="{client.session[:8]}"'
        lines = [line for line in metrics_of(server).splitlines() if not line.startswith("#")]
        found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
        assert found[f"thinpipe_session_step{{{labels}}}"] == 6
        assert found["thinpipe_steps_total"] == 6
        client._lose()
        until(lambda: server.statuses()[0].state == "away")
        until(lambda: server.counters.broken == 1)
        assert server.statuses()[0].step == 6
    with serve(tmp_path, metrics=0) as server:
        assert server.statuses() == []
        assert "thinpipe_session_step{" not in metrics_of(server)


def test_a_trace_of_many_megabytes_arrives(tmp_path):
    # It was told all at once, in more words than a channel holds, and lost with the connection.
    with serve() as server:
        with client_of(server, trace=tmp_path / "trace.json") as client:
            steps_of(client, 1)
            for k in range(60_000):
                server._sessions[client.session].half.tracer.add("compute", "F1.0", k, k + 0.5, step=1)
        assert server.counters.broken == 0
    assert len(read_chrome(tmp_path / "trace.json").spans) > 60_000


# -- disagreements -----------------------------------------------------------------------------------------------------


def test_a_codec_that_is_not_allowed_is_refused_with_both_lists():
    with serve(codecs=["uniform:8", "block:4"]) as server:
        with pytest.raises(
            DisagreementError, match=r"\['sort:6\+2'\] at the client, \['block:4/128', 'uniform:8'\] at the"
        ):
            client_of(server, codec="sort:6+2")
        with client_of(server, codec="block:4") as client, client_of(server) as plain:
            steps_of(client, 1)
            steps_of(plain, 1)
        assert server.counters.refused == 1


_OTHER_VERSION = """
import sys
import thinpipe
thinpipe.__version__ = "9.9.9"
sys.path.insert(0, {tests!r})
from remote.strangers import client_of
from thinpipe.errors import DisagreementError
class Server: address = {address!r}
try:
    client_of(Server)
except DisagreementError as error:
    print(error)
"""


def test_another_version_is_refused_with_both():
    import thinpipe

    with serve() as server:
        script = _OTHER_VERSION.format(tests=str(Path(__file__).parents[1]), address=server.address)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
        assert f"{thinpipe.__version__!r} at the server, '9.9.9' at the client" in done.stdout


def test_shapes_that_disagree_are_refused_with_both():
    first, last = ends()
    wrong = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Tanh())
    with serve() as server:
        with pytest.raises(
            DisagreementError, match=r"\['float32', \[8\]\]\] at the server, \[\['float32', \[9\]\]\] at"
        ):
            client_of(server, parts=(wrong, last), example=torch.zeros(1, 4))
        with pytest.raises(DisagreementError, match=r"'float64', \[8\]"):
            client_of(server, parts=(first.double(), last), example=torch.zeros(1, 4, dtype=torch.float64))
        with pytest.raises(DisagreementError, match=r"returns \[\['float32', \[8\]\]\], which the last part"):
            client_of(server, parts=(ends()[0], torch.nn.Linear(WIDE + 1, 3)), example=torch.zeros(1, 4))


def test_an_unknown_offer_is_refused_with_what_there_is():
    with serve() as server, pytest.raises(RefusedError, match="'midle' is not offered: there are dropping, middle"):
        client_of(server, offer="midle")


def test_a_session_goes_on_as_it_was_begun_or_not_at_all(tmp_path):
    with serve(tmp_path / "server") as server:
        with client_of(server, folder=tmp_path / "client") as client:
            steps_of(client, 2)
        with pytest.raises(DisagreementError, match=r"codecs: .*block:4.* at the client, .*None.* at the server"):
            client_of(server, folder=tmp_path / "client", codec="block:4")
        with pytest.raises(DisagreementError, match="offer"):
            client_of(server, folder=tmp_path / "client", offer="dropping")


@pytest.mark.parametrize("again", [{"chunks": 4}, {"schedule": "gpipe"}, {"schedule": "zb", "chunks": 1}, {"ahead": 3}])
def test_what_does_not_change_the_result_may_change_between_two_connections(tmp_path, again):
    with serve(tmp_path / "server") as server:
        client = client_of(server, folder=tmp_path / "client", chunks=3)
        steps_of(client, 2)
        client._past.save(client._half)
        client._lose()
        client._release()
        with client_of(server, folder=tmp_path / "client", **{"chunks": 3} | again) as other:
            assert other.session == client.session
            steps_of(other, 3)
            assert other.committed == 5


def test_one_client_cannot_fill_the_disk_with_sessions(tmp_path):
    for number in range(256):
        Store(tmp_path / f"{number:032x}").write_note({"owner's key": None})
    Store(tmp_path / f"{256:032x}").write_note({"owner's key": "somebody else"})
    full = pytest.raises(RefusedError, match="256 sessions of this client are saved")
    with Server({"middle": offer()}, listen="127.0.0.1:0", folder=tmp_path) as server, full:
        client_of(server)
