"""Hostile clients beside a good one, whose bytes must come through as ever."""

import struct
import threading
import time
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
import torch
import zmq

from links.net.ends import WAIT, Taken, all_keys, random_bytes, server, until
from links.net.hostile import (
    BYE,
    DATA,
    PIECE,
    PING,
    WORD,
    as_bytes,
    frame,
    head,
    hostile_bytes,
    hostile_bytes_of_a_peer,
    hostile_frames,
    open_bare,
    open_peer,
    send_endless_message,
    send_hostile,
    word,
)
from thinpipe.errors import PacketError, PeerLost, StallError
from thinpipe.links import Meter
from thinpipe.links.net.pieces import Assembly, read_head
from thinpipe.runtime.heap import return_memory


def memory():
    """The memory of this process, in bytes, without what is kept for later: another test may have chosen that."""
    return_memory()
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("nobody tells the memory of a process here")
    return int(statm.read_text().split()[1]) * 4096


@contextmanager
def good_traffic(hub, **options):
    """Has a good client and the server exchange messages all the while, and sees that they are the same."""
    client, channel = hub.meet(**options)
    there, back = Taken(channel, 1), Taken(client, 1)
    up, down = client.sender(1, Meter()), channel.sender(1, Meter())
    stop, done = threading.Event(), []

    def exchange():
        while not stop.is_set():
            expected = random_bytes(100_000, seed=len(done))
            up.send([expected])
            down.send([there.next()])
            assert torch.equal(back.next(), expected)
            done.append(True)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        until(lambda: len(done) > 2)
        yield
        rounds = len(done)
        until(lambda: len(done) > rounds + 2)
        assert client.failure is None
        assert channel.failure is None
    finally:
        stop.set()
        thread.join()


@contextmanager
def dealer(hub):
    """A real ZeroMQ socket that does as it likes."""
    context = zmq.Context()
    made = context.socket(zmq.DEALER)
    made.connect(f"tcp://{hub.address}")
    try:
        yield made
    finally:
        context.destroy(linger=0)


def reason(made):
    """What the server says before it hangs up."""
    while True:
        assert made.poll(WAIT * 1000), "the server said nothing"
        raw, body = made.recv_multipart()
        if raw[5] == BYE:
            return body.decode()


def test_bytes_that_are_no_client_at_all_disturb_nobody():
    with server() as hub, good_traffic(hub):
        open_ones = []
        for open_one, all_data in ((open_bare, hostile_bytes(1)), (open_peer, hostile_bytes_of_a_peer(1))):
            for data in all_data:
                bare = open_one(hub.address)
                bare.sendall(data)
                open_ones.append(bare)
        time.sleep(0.3)
        for bare in open_ones:
            bare.close()
        assert hub.accepted.empty()


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([[b"one frame"]], "two frames, got 1"),
        ([[b""] * 1000], "two frames, got more"),
        ([[bytes(28), b"x"]], "begins with"),
        ([[head(WORD, version=9), b""]], "version 1, the other one 9"),
        ([[head(77), b""]], "unknown kind 77"),
        ([[head(WORD, total=2), b"{}"]], "list of a name and a value"),
        ([[head(WORD, total=60_000), b"[" * 60_000]], "not JSON: RecursionError"),
        ([[head(WORD, total=3), b"abc"]], "not JSON"),
        ([[head(WORD, total=65_537), bytes(65_537)]], "at most 65536 bytes"),
        ([[head(PING, total=8), struct.pack("<d", float("nan"))]], "finite numbers"),
        ([[head(DATA, total=3), b"abc"]], "data came before the first word"),
        ([word("hi"), [head(DATA, lane=5, total=3), b"abc"]], "lane 5, which was not opened here"),
        ([word("hi"), [head(DATA, lane=1, total=2**40), bytes(PIECE)]], "announces 1099511627776 bytes"),
        ([word("hi"), [head(DATA, lane=1, total=9), b"abc"]], "no piece of 3 at 0"),
        ([word("hi"), [head(DATA, lane=1, total=2 * PIECE, offset=PIECE), bytes(PIECE)]], "at byte 0 of message 0"),
        ([word("hi"), [head(DATA, lane=1, number=7, total=3), b"abc"]], "a piece of message 7"),
        (
            [word("hi"), *[[head(DATA, lane=1, total=2 * PIECE), bytes(PIECE)]] * 2],
            "at byte 262144 of message 0, got a piece of message 0 (of 524288 bytes) at 0",
        ),
    ],
)
def test_a_wrong_piece_ends_its_connection_with_a_reason(messages, why, caplog):
    with server() as hub, dealer(hub) as made:
        opened = threading.Event()

        def open_lanes():
            Taken(hub.accepted.get(timeout=WAIT), 1, most=2**20)
            opened.set()

        if len(messages) > 1:
            threading.Thread(target=open_lanes).start()
            made.send_multipart(messages[0])
            assert opened.wait(WAIT)
        for message in messages[1:] or messages:
            made.send_multipart(message)
        assert why in reason(made)
        assert len([x for x in caplog.records if "was dropped" in x.message]) == 1


def test_a_client_with_a_name_of_its_own_choice_is_refused():
    with server() as hub, open_peer(hub.address, identity=b"me") as bare:
        bare.sendall(as_bytes(word("hello")))
        said = b""
        while chunk := bare.recv(4096):
            said += chunk
        assert b"must not choose its own routing id" in said
        assert hub.accepted.empty()


def test_a_refused_connection_is_really_ended():
    with server() as hub, open_peer(hub.address) as bare:
        bare.sendall(frame(b"nonsense"))
        began = time.monotonic()
        while bare.recv(4096):
            pass
        assert time.monotonic() - began < 1.5


def test_a_frame_that_claims_a_terabyte_is_dropped_before_there_is_memory_for_it():
    with server() as hub, good_traffic(hub):
        before = memory()
        for _ in range(20):
            with open_peer(hub.address) as bare:
                bare.sendall(frame(b"", claims=2**40))
                while bare.recv(4096):
                    pass  # until the server hangs up
        assert memory() - before < 50e6


def test_a_message_without_end_is_ended():
    with server() as hub, good_traffic(hub):
        before = memory()
        most = 2_000_000_000
        assert send_endless_message(hub.address, most=most) < most
        until(lambda: memory() - before < 150e6)


def test_a_hundred_silent_connections_disturb_nobody():
    with server() as hub, good_traffic(hub):
        silent = [open_bare(hub.address) for _ in range(100)]
        time.sleep(0.2)
        hub.meet()
        for bare in silent:
            bare.close()


def test_with_too_many_connections_the_silent_ones_have_to_go():
    with server(most_connections=20) as hub, good_traffic(hub):
        silent = [open_bare(hub.address) for _ in range(60)]
        time.sleep(0.3)
        client, channel = hub.meet()
        client.tell("made it")
        assert channel.hear(WAIT) == ("made it", None)
        for bare in silent:
            bare.close()


def test_words_that_nobody_hears_are_not_kept_for_ever():
    with server() as hub:
        client, channel = hub.meet()
        with pytest.raises(Exception, match="faster than they were read"):
            for _ in range(1000):
                client.tell("listen", "x" * 50_000)
                time.sleep(0.001)
        assert isinstance(channel.failure, PacketError)


def test_a_flood_of_pings_from_somebody_who_does_not_listen_is_not_answered_by_a_flood():
    with server(silence=2.0) as hub, good_traffic(hub), open_peer(hub.address) as bare:
        ping = [head(PING, total=8), struct.pack("<d", 1.0)]
        before, flood = memory(), as_bytes(ping) * 500
        for _ in range(100):
            bare.sendall(flood)
        assert memory() - before < 50e6


def test_a_client_that_stops_reading_holds_up_nobody_else():
    with server(silence=2.0) as hub, open_peer(hub.address) as bare:
        hello = as_bytes(word("hello"))
        bare.sendall(hello)
        stuck = hub.accepted.get(timeout=WAIT)
        before, failures = memory(), []

        def send_for_ever():
            lane = stuck.sender(1, Meter())
            try:
                while True:
                    lane.send([random_bytes(1_000_000)])
            except StallError as error:
                failures.append(error)

        thread = threading.Thread(target=send_for_ever)
        thread.start()
        with good_traffic(hub):
            for _ in range(25):  # it gives signs of life, but does not read
                bare.sendall(hello)
                time.sleep(0.1)
            assert memory() - before < 100e6
            thread.join(WAIT)
        assert "it does not read" in str(failures[0])


def test_the_right_lane_survives_a_hostile_one_that_uses_the_same_number():
    with server() as hub, good_traffic(hub), dealer(hub) as made:
        made.send_multipart(word("hello"))
        Taken(hub.accepted.get(timeout=WAIT), 1, most=100)
        made.send_multipart([head(DATA, lane=1, total=101), bytes(101)])
        assert "more than the 100 that are accepted" in reason(made)


def test_twenty_thousand_hostile_messages_disturb_nobody(caplog):
    with server() as hub, good_traffic(hub):
        before = memory()
        assert send_hostile(hub.address, 20_000, seed=7) == 20_000
        until(lambda: memory() - before < 100e6)
        assert len(caplog.records) < 200  # nor do they flood the log


def test_hostile_clients_with_a_key_disturb_nobody(tmp_path):
    keys, clients = all_keys(tmp_path, "alice", "mallory")
    with server(keys=keys) as hub, good_traffic(hub, keys=clients["alice"]):
        send_hostile(hub.address, 3_000, seed=8, keys=clients["mallory"])
        send_hostile(hub.address, 200, seed=9)


def test_a_hostile_server_breaks_nothing_but_the_channel():
    from thinpipe.links.net import dial

    context = zmq.Context()
    hub = context.socket(zmq.ROUTER)
    port = hub.bind_to_random_port("tcp://127.0.0.1")
    frames = hostile_frames(11)
    for k in range(20):
        client = dial(f"127.0.0.1:{port}")
        client.tell("hello", k)
        while (message := hub.recv_multipart())[2] != word("hello", k)[1].replace(b" ", b""):
            pass  # what is left of the one before
        for hostile in [*islice(frames, 20), [b"the last", b"straw"]]:
            hub.send_multipart([message[0], *hostile])
        with pytest.raises((PacketError, PeerLost)):
            while True:
                client.hear(WAIT)
        client.close()
    context.destroy(linger=0)


def test_whatever_comes_is_read_or_refused():
    for message in islice(hostile_frames(3), 5000):
        try:
            found = read_head(message[0], sum(map(len, message[1:])))
            Assembly(0, 2**20).add(found, memoryview(message[1]))
        except PacketError:
            pass
