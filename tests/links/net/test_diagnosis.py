"""Why there is no connection: each reason has an error of its own, with what to do about it."""

import http.server
import re
import socket
import ssl
import threading
import time
from contextlib import contextmanager

import pytest

from links.net.ends import all_keys, server, threads
from thinpipe.errors import AuthError, PeerLost, StallError
from thinpipe.links.net import ClientKeys, dial, make_keys
from thinpipe.links.net.addresses import Address


@contextmanager
def program(talk):
    """Listens at a port of its own, and has ``talk`` speak to whoever connects."""
    kept, listening = [], socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                made, _ = listening.accept()
            except OSError:
                return
            kept.append(made)
            talk(made)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)
        for made in kept:
            made.close()


@contextmanager
def web_server():
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{made.server_address[1]}"
    finally:
        made.shutdown()
        made.server_close()


def tls(made):
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).wrap_socket(made, server_side=True).close()
    except OSError:
        made.close()


def ssh(made):
    made.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def client_keys(folder, whether):
    return all_keys(folder, "alice")[1]["alice"] if whether else None


@pytest.fixture(params=[False, True], ids=["without-keys", "with-keys"])
def keys(request, tmp_path):
    return client_keys(tmp_path, request.param)


@pytest.mark.parametrize("name", ["name.invalid", "256.1.1.1", "-bad-", "a..b", "x" * 70])
def test_a_name_that_cannot_be_resolved_is_told_at_once(name, keys):
    began = time.monotonic()
    with pytest.raises(PeerLost, match=f"the name {name!r} cannot be resolved"):
        dial(f"{name}:5555", keys=keys, timeout=60)
    assert time.monotonic() - began < 30
    assert threads() == []


def test_a_name_is_resolved_and_numbers_are_left_alone():
    assert Address("localhost", 1).resolved().url == "tcp://127.0.0.1:1"
    assert Address("::1", 1).resolved() == Address("::1", 1)
    with server() as hub:
        name = socket.gethostname()
        try:
            number = Address(name, 0).resolved()
        except PeerLost:
            pytest.skip("this machine does not know its own name")
        assert number._number is not None
        dial(hub.address).close()


def test_a_port_where_no_server_listens_is_told_at_once(keys):
    with server() as hub:
        address = hub.address
    began = time.monotonic()
    with pytest.raises(PeerLost, match=f"no server listens at {address}; start the server"):
        dial(address, keys=keys, timeout=60)
    assert time.monotonic() - began < 30
    assert threads() == []


def test_a_web_server_is_recognized(keys):
    with web_server() as address:
        expected = f"something answers at {address}, but it is no thinpipe server: a web server"
        with pytest.raises(PeerLost, match=expected):
            dial(address, keys=keys, timeout=5)
    assert threads() == []


@pytest.mark.parametrize(
    ("talk", "what"),
    [
        (ssh, r"an SSH server, which says 'SSH-2\.0-OpenSSH_9\.6'"),
        (lambda made: made.sendall(b"\x15\x03\x01\x00\x02\x02\x28"), "a TLS server"),
        (lambda made: made.sendall(b"220 mail.example.org ESMTP\r\n"), "another program, which says '220 mail"),
        (lambda made: made.sendall(b"\x1b[2J\xff" * 100), r"another program, which says '\\x1b\[2J"),
    ],
)
def test_another_program_is_recognized_by_what_it_says(talk, what, keys):
    with program(talk) as address, pytest.raises(PeerLost, match=f"it is no thinpipe server: {what}"):
        dial(address, keys=keys, timeout=5)
    assert threads() == []


def test_a_tls_server_that_hangs_up_is_no_thinpipe_server(keys):
    with program(tls) as address, pytest.raises(PeerLost, match=f"{address} .*it is no thinpipe server"):
        dial(address, keys=keys)
    assert threads() == []


def test_a_port_that_accepts_and_says_nothing_is_told(keys):
    said = r"accepted the connection and said nothing within 0\.6 s"
    with program(lambda made: None) as address, pytest.raises(StallError, match=f"{address} {said}"):
        dial(address, keys=keys, timeout=0.6)
    assert threads() == []


def test_a_tunnel_whose_server_is_down_is_not_taken_for_one_with_other_keys(keys):
    with program(lambda made: made.close()) as address, pytest.raises(PeerLost, match=f"{address} closes connections"):
        dial(address, keys=keys)
    assert threads() == []


def test_an_address_that_takes_no_connection_at_all_is_told(keys):
    # A queue of connections that is full: the kernel drops what comes, as a firewall does.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        time.sleep(0.1)
        try:
            with pytest.raises(StallError, match=rf"no answer at all from 127\.0\.0\.1:{address[1]} within 0\.6 s"):
                dial(f"127.0.0.1:{address[1]}", keys=keys, timeout=0.6)
        finally:
            for each in waiting:
                each.close()
    assert threads() == []


def test_other_servers_of_zeromq_are_told_apart(keys):
    import zmq

    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")
        expected = "another program that speaks ZeroMQ" if keys is None else "has none; start it with keys"
        with pytest.raises(PeerLost if keys is None else AuthError, match=expected):
            dial(f"127.0.0.1:{port}", keys=keys, timeout=5)
    assert threads() == []


def test_who_has_no_keys_who_has_others_and_who_is_unknown_are_told_apart(tmp_path):
    served, clients = all_keys(tmp_path, "alice")
    alice, other, mallory = clients["alice"], make_keys(tmp_path, "other"), make_keys(tmp_path, "mallory")
    with server(keys=served) as keyed, server() as plain:
        for address, own, expected in (
            (keyed.address, None, "the client has no keys and the server at .* has keys; give the client its keys"),
            (plain.address, alice, "the client has keys and the server at .* has none; start it with keys"),
            (keyed.address, ClientKeys(alice.own, other.public), f"has not got the key {re.escape(other.public[:8])}"),
            (keyed.address, ClientKeys(mallory, served.own.public), "does not accept the client's key"),
        ):
            with pytest.raises(AuthError, match=expected):
                dial(address, keys=own)
        keyed.meet(keys=alice)
        plain.meet()
    assert threads() == []
