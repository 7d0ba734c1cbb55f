"""A server among hostile clients: each is told what it did wrong, and a training beside them is what it would be."""

import json
import multiprocessing
import random
import struct
import time
import zlib
from contextlib import ExitStack, suppress

import pytest
import torch
from torch import nn

from links.net.ends import WAIT, all_keys, until
from links.net.hostile import (
    PING,
    as_bytes,
    frame,
    head,
    hostile_frames,
    open_bare,
    open_peer,
    send_endless_message,
    send_hostile,
    send_hostile_bytes,
    word,
)
from remote.models import WIDE, batch, offer, sgd
from remote.strangers import (
    DOWN,
    UP,
    Insider,
    Training,
    activation,
    answer_to,
    begin_of,
    client_of,
    forged,
    frame_of,
    gradient,
    hello_of,
    nothing_left_behind,
    states,
    threads,
    verify_same_states,
)
from thinpipe.errors import AuthError, PeerLost, RefusedError
from thinpipe.links.net import ClientKeys, make_keys
from thinpipe.remote.offer import Offer
from thinpipe.remote.server import Server
from thinpipe.runtime.parcel import Cargo

SILENCE = 3.0


class Wider(nn.Module):
    """Returns megabytes for a few bytes."""

    def forward(self, x):
        return x.repeat(1, 100_000)


class Siege:
    """A server that is attacked, and the client that trains with it all the while."""

    def __init__(self, folder, *, keys=None, own=None):
        torch.set_num_threads(1)  # as in every test: with another number, sums have other last bits
        self.folder, self.keys = folder, own
        offers = {
            "middle": offer(dropout=0.2),
            "wider": Offer(lambda: nn.Sequential(nn.Linear(WIDE, WIDE), Wider()), sgd),
        }
        self.server = Server(offers, listen="127.0.0.1:0", keys=keys, folder=folder / "besieged", silence=SILENCE)
        self.address = self.server.address
        self.training = Training(self.server, pause=0.04, keys=own)
        self.training.goes_on()
        self._threads, self._channel = len(threads()), self.training.client._channel

    def end(self):
        """Ends the training, and compares it with the same one in peace."""
        self.training.goes_on()
        until(lambda: len(threads()) <= self._threads)
        assert self.training.client._channel is self._channel, "the connection was lost"
        self.training.stop()
        self.server.close()
        client, losses = self.training.client, self.training.losses
        with Server({"middle": offer(dropout=0.2)}, listen="127.0.0.1:0", folder=self.folder / "peace") as server:
            with client_of(server, chunks=3, every=20) as calm:
                assert [calm.step(*batch(step, 11)).item() for step in range(len(losses))] == losses
            verify_same_states(states(client, self.folder / "besieged"), states(calm, self.folder / "peace"))


@pytest.fixture(scope="module")
def open_siege(tmp_path_factory):
    siege = Siege(tmp_path_factory.mktemp("open"))
    yield siege
    siege.end()


@pytest.fixture(scope="module")
def all_the_keys(tmp_path_factory):
    return all_keys(tmp_path_factory.mktemp("keys"), "alice", "mallory")


@pytest.fixture(scope="module")
def keyed_siege(tmp_path_factory, all_the_keys):
    keys, clients = all_the_keys
    siege = Siege(tmp_path_factory.mktemp("keyed"), keys=keys, own=clients["alice"])
    yield siege
    siege.end()


@pytest.fixture
def siege(open_siege):
    """Around each attack: the training goes on, no thread stays, and no memory is lost."""
    with nothing_left_behind():
        yield open_siege
        open_siege.training.goes_on()
    assert all(status.state == "away" for status in open_siege.server.statuses()[1:])


@pytest.fixture
def beside(open_siege):
    """Around each small one of many attacks: what stays of them is seen at the end of the siege."""
    yield open_siege
    open_siege.training.goes_on(1)


# -- strangers ---------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(200)
def test_a_hundred_thousand_hostile_frames_change_no_bit_of_a_training(tmp_path, caplog):
    siege = Siege(tmp_path)
    context = multiprocessing.get_context("forkserver")
    with nothing_left_behind(megabytes=150):
        attacks = [
            context.Process(target=send_hostile, args=(siege.address, 25_000, seed), kwargs={"a_batch": 100})
            for seed in range(4)
        ]
        for attack in attacks:
            attack.start()
        for attack in attacks:
            attack.join()
            assert attack.exitcode == 0
        siege.training.goes_on()
    assert len(caplog.records) < 300  # nor do they flood the log
    siege.end()


def test_bytes_that_are_no_client_at_all(siege):
    for seed in range(3):
        send_hostile_bytes(siege.address, seed)
    with open_peer(siege.address) as bare:
        bare.sendall(frame(b"", claims=2**40))
    with open_bare(siege.address) as bare:
        bare.sendall(b"POST /train HTTP/1.1\r\nContent-Length: 1099511627776\r\n\r\n")
        with suppress(OSError):
            while bare.recv(4096):
                pass


def test_a_message_without_end(open_siege):
    with nothing_left_behind(megabytes=150):
        assert send_endless_message(open_siege.address, most=1_000_000_000) < 1_000_000_000
        open_siege.training.goes_on()


def test_fifty_who_connect_and_say_nothing(siege):
    with ExitStack() as stack:
        for _ in range(25):
            stack.enter_context(open_bare(siege.address))
            stack.enter_context(open_peer(siege.address))
        siege.training.goes_on(10)
        assert "is not offered" in answer_to(siege, ("hello", hello_of(offer="?")))[1]["reason"]


# -- who knows the protocol --------------------------------------------------------------------------------------------


def nested(depth):
    return json.loads("[" * depth + "]" * depth)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([("begin", begin_of())], "the first word is 'hello', got 'begin'"),
        ([("hello", None)], "a hello has at, bandwidth"),
        ([("hello", [1, 2])], "a hello has at, bandwidth"),
        ([("hello", hello_of() | {"surprise": 1})], "a hello has at, bandwidth"),
        (
            [("hello", hello_of(protocol=1))],
            "the protocol here is 2, that of the other end 1; install one version of thinpipe",
        ),
        ([("hello", hello_of(protocol=[9] * 10_000))], "the protocol here is 2"),
        ([("hello", hello_of(version="0.0.1"))], "'0.0.1' at the client"),
        ([("hello", hello_of(version=7))], "a hello that makes no sense"),
        ([("hello", hello_of(offer="money"))], "'money' is not offered: there are middle, wider"),
        ([("hello", hello_of(offer="x" * 50_000))], "is not offered"),
        ([("hello", hello_of(session="../../../../etc/passwd"))], "32 characters of 0-9 and a-f"),
        ([("hello", hello_of(session="5" * 31 + "\n"))], "32 characters of 0-9 and a-f"),
        ([("hello", hello_of(session="A" * 32))], "32 characters of 0-9 and a-f"),
        ([("hello", hello_of(steps=[0] * 1001))], "a hello that makes no sense"),
        ([("hello", hello_of(steps=[-1]))], "a hello that makes no sense"),
        ([("hello", hello_of(steps=[0.5]))], "a hello that makes no sense"),
        ([("hello", hello_of(steps=[10**400]))], "a hello that makes no sense"),
        ([("hello", hello_of(steps={"0": 0}))], "a hello that makes no sense"),
        ([("hello", hello_of(at=True))], "a hello that makes no sense"),
        ([("hello", hello_of(known=1))], "a hello that makes no sense"),
        ([("hello", hello_of(known=True))], "the session is not known here"),
        ([("hello", hello_of(steps=[7], at=7))], "no step in common: the client has [7]"),
        ([("hello", hello_of(bandwidth=10**400))], "a bandwidth is at least"),
        ([("hello", hello_of(bandwidth=1e-300))], "a bandwidth is at least"),
        ([("hello", hello_of(bandwidth=-5))], "a bandwidth is at least"),
        ([("hello", hello_of(commit={"step": 1, "lr": 10**400, "scale": 1.0}))], "a commit that makes no sense"),
        ([("hello", hello_of(commit={"step": 1, "lr": None, "scale": "much"}))], "a commit that makes no sense"),
        ([("hello", hello_of(inputs=[["float32", [9]]]))], "[['float32', [9]]] at the client"),
        ([("hello", hello_of(inputs=nested(400)))], "at the client"),
        ([("hello", hello_of(terms=None))], "terms that make no sense"),
        ([("hello", hello_of(chunks=0))], "terms whose chunks is 0"),
        ([("hello", hello_of(chunks=10**9))], "terms whose chunks is 1000000000"),
        ([("hello", hello_of(chunks=4096))], "this server takes at most 256"),
        ([("hello", hello_of(seed=-1))], "terms whose seed is -1"),
        ([("hello", hello_of(every=1.5))], "terms whose every is 1.5"),
        ([("hello", hello_of(schedule="x" * 50_000))], "no schedule is called"),
        ([("hello", hello_of(codecs=[["zip", None], [None, None]]))], "'zip' names no codec"),
        ([("hello", hello_of(codecs=[["svd:1|" * 32 + "none", None], [None, None]]))], "at most 8 codecs, got 33"),
        ([("hello", hello_of(codecs=[[None, None]]))], "there are 2 cuts"),
    ],
)
def test_a_wrong_hello_is_refused_with_a_reason(beside, words, why):
    said, value = answer_to(beside, *words)
    assert said == "refused"
    assert why in value["reason"]
    assert len(value["reason"]) < 5000


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (("hello", hello_of()), "'hello' is no word of a client"),
        (("x" * 1000, None), "is no word of a client"),
        (("begin", begin_of(step=2)), "step 2 cannot begin after step 0"),
        (("begin", begin_of(step=-1)), "a step that makes no sense"),
        (("begin", begin_of(rows=[])), "a step that makes no sense"),
        (("begin", begin_of(rows=[0, 3])), "a step that makes no sense"),
        (("begin", begin_of(rows=[2**61, 1])), "a step that makes no sense"),
        (("begin", begin_of(rows=[1] * 3)), "a step that makes no sense"),
        (("begin", begin_of(train="yes")), "a step that makes no sense"),
        (("begin", {}), "a begin has"),
        (("commit", {"step": 1, "lr": None, "scale": 1.0}), "step 1 cannot be committed after step 0"),
        (("commit", {"step": 1, "lr": None, "scale": 10**400}), "a commit that makes no sense"),
        (("commit", 1), "a commit has"),
        (("saved", "all"), "'all' is no step"),
        (("leave", None), "None is no step"),
    ],
)
def test_a_wrong_word_ends_the_connection_with_a_reason(beside, said, why, caplog):
    insider = Insider(beside)
    insider.channel.tell(*said)
    assert why in insider.end()
    until(lambda: any(why in record.getMessage() for record in caplog.records))


def test_saying_thousands_of_times_that_something_was_saved_fills_no_memory(siege):
    insider = Insider(siege)
    for step in range(5000):
        insider.channel.tell("saved", step)
    session = siege.server._sessions["5" * 32]
    insider.channel.tell("save")
    while insider.channel.hear(WAIT)[0] != "saved":
        pass
    assert len(session.past._theirs) <= 1
    insider.channel.tell("leave", 0)
    insider.end()


@pytest.mark.parametrize(
    ("lane", "messages", "why"),
    [
        (UP, [bytes(100)], "not a frame"),
        (UP, [b""], "a frame has at least"),
        (UP, [random.Random(1).randbytes(10_000)], "not a frame"),
        (UP, [activation()[:-1]], "PacketError"),
        (UP, [gradient()], "sent GRADIENT of edge 1 where ACTIVATION of edge 0 was expected"),
        (UP, [activation(edge=1)], "sent ACTIVATION of edge 1"),
        (UP, [activation(step=9)], "of step 9 while this end is at step 1"),
        (UP, [activation(micro=2)], "sent micro-batch 2"),
        (UP, [activation(micro=2**32 - 1)], "sent micro-batch 4294967295"),
        (UP, [activation(spec="uniform:8")], "a packet of the codec 'uniform:8' came"),
        (UP, [activation(wide=9)], "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        (UP, [frame_of(torch.ones(3, WIDE, dtype=torch.int64), wants=False)], "RuntimeError"),
        (UP, [frame_of(torch.ones(3, WIDE, dtype=torch.int64))], "Error"),
        (UP, [frame_of(torch.ones(3, WIDE, dtype=torch.complex64))], "RuntimeError"),
        (UP, [frame_of(torch.ones(()))], "Error"),
        (UP, [frame_of((torch.ones(3, WIDE), torch.ones(3, WIDE)))], "Error"),
        (UP, [frame_of("a text")], "Error"),
        (UP, [frame_of([])], "Error"),
        (DOWN, [gradient()], "a gradient that was not expected"),
        (DOWN, [gradient(micro=7)], "sent micro-batch 7"),
        (7, [activation()], "lane 7, which was not opened"),
    ],
)
def test_a_wrong_message_ends_the_connection_with_a_reason(beside, lane, messages, why):
    insider = Insider(beside)
    insider.begin()
    for message in messages:
        insider.send(lane, message)
    assert why in insider.end()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (gradient(wide=9), "sent a gradient of torch.float32 (3, 9) for an activation of torch.float32 (3, 8)"),
        (gradient(rows=4), "sent a gradient of torch.float32 (4, 8) for an activation of torch.float32 (3, 8)"),
        (
            frame_of([torch.ones(3, WIDE).double()], cargo=Cargo.GRADIENT, edge=1),
            "sent a gradient of torch.float64 (3, 8) for an activation of torch.float32 (3, 8)",
        ),
        (frame_of(["text"], cargo=Cargo.GRADIENT, edge=1), ""),
        (frame_of([], cargo=Cargo.GRADIENT, edge=1), "a gradient that was not expected"),
    ],
)
def test_a_wrong_gradient_is_the_senders_trouble_alone(beside, wrong, why):
    insider = Insider(beside, chunks=1)
    insider.begin(rows=[3])
    insider.send(UP, activation())
    insider.activations.next()
    insider.send(DOWN, wrong)
    if why:
        assert why in insider.end()
    else:  # no gradient at all is none: a step like any other
        assert insider.channel.hear(WAIT)[0] == "ready"
        insider.channel.close()


def test_more_than_was_agreed_on_is_not_kept(siege):
    insider = Insider(siege)
    insider.begin()
    with pytest.raises(Exception, match=r"which is all that was agreed on|sent micro-batch"):
        for number in range(10_000):
            insider.send(UP, activation(rows=1000, micro=number % 2, step=1 + number % 2))
            insider.channel._connection.check()
            if number > 100:
                insider.send(UP, activation(micro=9))
    insider.channel.close()


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((1_000_000_000_039,), "holds tensors of 4000000000156 bytes"),
        ((2, 3, 1_000_000_000_039, 16), "holds tensors of"),
        ((134_217_689,), "takes sections of"),
    ],
)
def test_a_packet_that_claims_a_huge_prime_costs_a_server_nothing(siege, shape, why):
    """It had a thread of the server look for divisors of it, for ever: the thread outlived the connection."""
    insider = Insider(siege, session="8" * 32, codecs=[["wave:4", "wave:4"], [None, None]])
    insider.begin()
    insider.send(UP, activation(spec="wave:4"))
    insider.activations.next()
    insider.send(UP, forged("wave:4", shape, micro=1))
    assert why in insider.end()


def test_a_short_message_may_not_become_a_large_tensor(siege):
    """Two thin factors of a matrix of 1.6 GB, in 160 kB."""
    insider = Insider(siege, session="9" * 32, codecs=[["power:1", None], [None, None]])
    insider.begin()
    insider.send(UP, activation(spec="power:1"))
    insider.activations.next()
    # Of 20 matrices of 1000 x 1000 the factors are as many numbers as of one of 20,000 x 20,000.
    insider.send(UP, forged("power:1", (1, 20_000, 20_000), honest=(20, 1000, 1000), micro=1))
    assert "holds tensors of 1600000000 bytes; this end takes 536870912 bytes (max_message)" in insider.end()


def test_frames_that_were_changed_on_their_way_are_read_or_refused(siege):
    dice = random.Random(5)
    for _ in range(40):
        message = bytearray(activation(spec=dice.choice(("none", "block:4", "topk:0.5"))).numpy().tobytes())
        for _ in range(dice.randint(1, 6)):
            message[dice.randrange(len(message))] = dice.randrange(256)
        if dice.random() < 0.7:  # whoever can change a frame can also make its checksum right
            length = struct.unpack_from("<I", message, 22)[0]
            struct.pack_into("<I", message, 30, 0)
            struct.pack_into("<I", message, 30, zlib.crc32(message[: 34 + min(length, 10_000)]))
        codecs = [["block:4", "block:4"], ["topk:0.5", None]]
        insider = Insider(siege, session="6" * 32, codecs=codecs)
        insider.begin()
        insider.send(UP, bytes(message))
        insider.channel.close()


def test_hostile_frames_after_a_good_beginning(siege):
    frames = hostile_frames(21)
    good = as_bytes(word("hello", hello_of())) + as_bytes(word("begin", begin_of()))
    for _ in range(30):
        with suppress(OSError), open_peer(siege.address) as bare:
            bare.sendall(good)
            time.sleep(0.02)
            for _ in range(30):
                bare.sendall(as_bytes(next(frames)))


# -- who does nothing wrong, and nothing more --------------------------------------------------------------------------


def test_a_client_that_begins_a_step_and_falls_silent_is_given_up(siege, caplog):
    with open_peer(siege.address) as bare:
        bare.sendall(as_bytes(word("hello", hello_of())) + as_bytes(word("begin", begin_of())))
        began = time.monotonic()
        with suppress(OSError):
            bare.settimeout(20)
            while bare.recv(4096):
                pass
        assert SILENCE - 0.5 < time.monotonic() - began < SILENCE + 4
    assert any("gave no sign of life for 3 s" in record.getMessage() for record in caplog.records)


def test_a_client_that_begins_a_step_and_stops_reading_is_given_up(siege, caplog):
    with open_peer(siege.address) as bare:
        hello = hello_of(offer="wider", session="7" * 32)
        bare.sendall(as_bytes(word("hello", hello)) + as_bytes(word("begin", begin_of())))
        time.sleep(0.2)
        for micro in range(2):
            content = activation(rows=20, micro=micro).numpy().tobytes()
            bare.sendall(as_bytes([head(2, number=micro, total=len(content)), content]))
        ping = as_bytes([head(PING, total=8), struct.pack("<d", 1.0)])
        with suppress(OSError):
            for _ in range(80):  # it lives, but does not read
                bare.sendall(ping)
                time.sleep(0.1)
        assert any("it does not read" in record.getMessage() for record in caplog.records)


def test_a_client_that_lives_and_sends_nothing_of_its_step_is_given_up_after_a_while(tmp_path):
    with Server({"middle": offer()}, listen="127.0.0.1:0", idle=1.0, max_clients=1) as server:
        insider = Insider(server)
        insider.begin()
        assert "sent nothing of its step for 1 s" in insider.end()
        until(lambda: not server.statuses())


def test_a_slow_client_is_waited_for_as_long_as_something_comes():
    with Server({"middle": offer()}, listen="127.0.0.1:0", idle=1.0) as server:
        insider = Insider(server, chunks=8)
        insider.begin(rows=[3] * 8, train=False)
        for micro in range(8):
            time.sleep(0.5)
            insider.send(UP, activation(micro=micro, wants=False))
        assert insider.channel.hear(WAIT)[0] == "ready"
        insider.channel.close()


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def keyed(keyed_siege):
    with nothing_left_behind():
        yield keyed_siege
        keyed_siege.training.goes_on()


def test_a_hostile_client_with_a_key_disturbs_nobody(keyed, all_the_keys):
    send_hostile(keyed.address, 3_000, seed=8, keys=all_the_keys[1]["mallory"])
    send_hostile(keyed.address, 200, seed=9)


def test_no_key_a_wrong_key_and_an_unknown_client_are_told_so(keyed, all_the_keys, tmp_path):
    # Whether a client without keys learns the reason or only that the server hung up is up to ZeroMQ's two ends.
    with pytest.raises((AuthError, PeerLost), match=r"the client has no keys and|it wants keys"):
        client_of(keyed)
    known = all_the_keys[1]["mallory"]
    with pytest.raises(AuthError, match="does not accept the client's key"):
        client_of(keyed, keys=ClientKeys(make_keys(tmp_path, "eve"), known.server))
    with pytest.raises(AuthError, match="it has not got the key"):
        client_of(keyed, keys=ClientKeys(known.own, make_keys(tmp_path, "other").public))


def test_the_session_of_another_client_is_not_to_be_had(keyed, all_the_keys):
    theirs = keyed.training.client.session
    mallory = all_the_keys[1]["mallory"]
    for known in (False, True):
        said, value = answer_to(keyed, ("hello", hello_of(session=theirs, known=known)), keys=mallory)
        assert said == "refused"
        assert "the session is another client's" in value["reason"]
        assert keyed.keys.own.public not in value["reason"]
    client = client_of(keyed, keys=mallory)
    with client:
        client.step(*batch(0))
        client.session = theirs
        client._lose()
        with pytest.raises(RefusedError, match="another client's"):
            client.step(*batch(1))


def test_a_key_that_is_withdrawn_ends_its_session_and_no_other(keyed, all_the_keys, caplog):
    keys, clients = all_the_keys
    with client_of(keyed, keys=clients["mallory"]) as client:
        client.step(*batch(0))
        assert {status.name for status in keyed.server.statuses()} == {"alice", "mallory"}
        keyed.server.allow({keys_of: name for keys_of, name in keys.clients.items() if name == "alice"})
        try:
            with pytest.raises(AuthError, match="does not accept the client's key"):
                client.step(*batch(1))
        finally:
            keyed.server.allow(keys.clients)
    assert any("its key was withdrawn" in record.getMessage() for record in caplog.records)
    assert not any(record.exc_info for record in caplog.records)
