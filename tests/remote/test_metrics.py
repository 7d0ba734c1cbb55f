"""A server's metrics are read over HTTP by what Prometheus reads them with, whatever a client calls itself."""

import socket
import sys
import threading
import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as some
from prometheus_client.parser import text_string_to_metric_families

from thinpipe.remote.metrics import Counters, SessionStatus, serve_metrics, status_line


def status(name="ada", session="3f2a9c01", offer="resnet50", state="training", **others):
    values = {
        "step": 120,
        "rows": 3840,
        "sent": 3_200_000,
        "received": 1_100_000,
        "computed": 12.5,
        "waited": 2.25,
        "seconds_since_heard": 0.5,
    }
    return SessionStatus(name, session, offer, state, **(values | others))


def read(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def samples(server):
    return [sample for family in text_string_to_metric_families(read(server)) for sample in family.samples]


def test_all_of_a_server_is_told():
    counters = Counters()
    for name, times in (("refused", 1), ("broken", 2), ("steps", 3), ("replays", 4)):
        for _ in range(times):
            counters.count(name)
    with serve_metrics(0, lambda: [status(), status("bob", "00000000", state="away")], counters) as server:
        found = {
            (sample.name, sample.labels.get("client"), sample.labels.get("state")): sample.value
            for sample in samples(server)
        }
    assert found["thinpipe_sessions", None, None] == 2
    assert found["thinpipe_sessions_refused_total", None, None] == 1
    assert found["thinpipe_connections_broken_total", None, None] == 2
    assert found["thinpipe_steps_total", None, None] == 3
    assert found["thinpipe_replays_total", None, None] == 4
    of_ada = {name: value for (name, client, state), value in found.items() if client == "ada" and state is None}
    assert of_ada == {
        "thinpipe_session_step": 120,
        "thinpipe_session_rows_total": 3840,
        "thinpipe_session_sent_bytes_total": 3_200_000,
        "thinpipe_session_received_bytes_total": 1_100_000,
        "thinpipe_session_computed_seconds_total": 12.5,
        "thinpipe_session_waited_seconds_total": 2.25,
        "thinpipe_session_silent_seconds": 0.5,
    }
    states = {(client, state): value for (_, client, state), value in found.items() if state}
    assert {key for key, value in states.items() if value} == {("ada", "training"), ("bob", "away")}
    assert len(states) == 6


def test_sessions_are_asked_for_anew_at_every_request():
    sessions = []
    with serve_metrics(0, lambda: sessions, Counters()) as server:
        assert "thinpipe_sessions 0.0" in read(server)
        assert 'client="' not in read(server)
        sessions.append(status())
        assert 'thinpipe_session_step{client="ada",offer="resnet50",session="3f2a9c01"} 120.0' in read(server)


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "a\nb", "\\n", 'x"} 1\nthinpipe_steps_total 99', "é 漢 \U0001f600", "\r"]
)
def test_a_name_is_a_label_and_nothing_else(name):
    with serve_metrics(0, lambda: [status(name)], Counters()) as server:
        found = samples(server)
    assert {sample.labels["client"] for sample in found if "client" in sample.labels} == {name}
    assert [sample.value for sample in found if sample.name == "thinpipe_steps_total"] == [0]


def test_half_a_surrogate_and_a_name_without_end_cost_nothing():
    with serve_metrics(0, lambda: [status("\ud800" + "x" * 10**6)], Counters()) as server:
        found = samples(server)
    assert {sample.labels["client"] for sample in found if "client" in sample.labels} == {"?" + "x" * 63}


def test_two_sessions_that_look_the_same_are_said_once():
    with serve_metrics(0, lambda: [status(step=1), status(step=2)], Counters()) as server:
        assert [sample.value for sample in samples(server) if sample.name == "thinpipe_session_step"] == [2]


def test_any_names_are_read_back():
    sessions = []
    with serve_metrics(0, lambda: sessions, Counters()) as server:

        @given(names=some.lists(some.text(some.characters()), max_size=3))
        def read_back(names):
            sessions[:] = [status(name, str(number)) for number, name in enumerate(names)]
            found = [sample.labels["client"] for sample in samples(server) if sample.name == "thinpipe_session_step"]
            assert found == [name[:64].encode("utf-8", "replace").decode() for name in names]

        read_back()


def test_two_servers_share_nothing():
    first, second = Counters(), Counters()
    first.count("steps")
    with serve_metrics(0, list, first) as one, serve_metrics(0, list, second) as other:
        assert one.port != other.port
        assert "thinpipe_steps_total 1.0" in read(one)
        assert "thinpipe_steps_total 0.0" in read(other)


def test_closing_frees_the_port_and_the_thread():
    server = serve_metrics(0, list, Counters())
    port = server.port
    read(server)
    server.close()
    server.close()
    assert not server._thread.is_alive()
    with serve_metrics(port, list, Counters()) as again:
        assert again.port == port
        assert "thinpipe_sessions 0.0" in read(again)


def test_only_this_machine_is_served():
    with serve_metrics(0, list, Counters()) as server:
        assert server._server.server_address[0] == "127.0.0.1"
        # Another address of this machine, as good as another machine's.
        with socket.socket() as other, pytest.raises(OSError):
            other.connect(("127.0.0.2", server.port))


def test_a_port_that_is_taken_is_said():
    with (
        serve_metrics(0, list, Counters()) as server,
        pytest.raises(OSError, match=f"cannot be served on 127.0.0.1:{server.port} .*try another port, or 0"),
    ):
        serve_metrics(server.port, list, Counters())


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(ImportError, match=r"pip install 'thinpipe\[net\]'"):
        serve_metrics(0, list, Counters())


def test_threads_lose_no_count():
    counters = Counters()

    def count():
        for _ in range(2000):
            counters.count("steps")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.read() == {"refused": 0, "broken": 0, "steps": 8000, "replays": 0}
    with pytest.raises(ValueError, match="no counter is called 'step'; there are refused, broken, steps, replays"):
        counters.count("step")


def test_a_line_has_those_that_train_first():
    assert status_line([]) == "no sessions"
    away = status("bob", state="away", seconds_since_heard=75.2, step=3, sent=900, received=0)
    assert status_line([away, status()]) == (
        "2 sessions, 1 training, 1 away | ada resnet50 training step 120, 3.2 MB out, 1.1 MB in"
        " | bob resnet50 away for 75 s step 3, 900 B out, 0 B in"
    )
    assert status_line([status()] * 7).endswith(" | 3 more")


@given(some.lists(some.text(some.characters())))
def test_a_line_is_one_line_whatever_clients_call_themselves(names):
    line = status_line([status(name, offer=name) for name in ["\x1b[2J\r\n", *names]])
    assert line.isprintable()
