"""Two ends of a channel, in one process, over a real connection."""

import time
from queue import Empty, Queue

import pytest
import torch

from links.net.ends import WAIT, Taken, random_bytes, server, threads, until
from thinpipe.errors import AddressError, PacketError, PeerLost, StallError
from thinpipe.links import Closed, Meter, Throttle
from thinpipe.links.net import Listener, dial

SIZES = [0, 1, 15, 262_143, 262_144, 262_145, 1_000_000, 20_000_000, 0, 7]


def test_words_come_in_order_with_their_values():
    values = [None, 1, -2.5, "grüße", [1, [2]], {"a": {"b": []}}, "x" * 60_000, True]
    with server() as hub:
        client, channel = hub.meet()
        for k, value in enumerate(values * 20):
            client.tell(f"word {k}", value)
            channel.tell(f"back {k}", value)
        for k, value in enumerate(values * 20):
            assert channel.hear(WAIT) == (f"word {k}", value)
            assert client.hear(WAIT) == (f"back {k}", value)


def test_a_word_must_be_json_and_short():
    with server() as hub:
        client, channel = hub.meet()
        for value in (object(), float("nan"), b"bytes", {1, 2}):
            with pytest.raises(TypeError, match="JSON"):
                client.tell("bad", value)
        with pytest.raises(ValueError, match="send it on a lane"):
            client.tell("long", "x" * 70_000)
        client.tell("good")
        assert channel.hear(WAIT) == ("good", None)


def test_nobody_waits_for_a_word_longer_than_the_timeout():
    with server() as hub:
        client, _ = hub.meet()
        began = time.monotonic()
        with pytest.raises(StallError, match=r"the server at 127\.0\.0\.1:\d+ sent no word within 0\.2 s"):
            client.hear(0.2)
        assert time.monotonic() - began < 1.0
        assert client.failure is None


def test_messages_of_all_sizes_pass_both_ways_on_several_lanes_in_order():
    with server() as hub:
        client, channel = hub.meet()
        ends = []
        for source, target in ((client, channel), (channel, client)):
            for lane in (0, 7, 65535):
                ends.append((source.sender(lane, Meter()), Taken(target, lane), lane))
        for k, size in enumerate(SIZES):
            for sender, _, lane in ends:
                sender.send([random_bytes(size, seed=k + lane)])
        for k, size in enumerate(SIZES):
            for _, taken, lane in ends:
                message = taken.next()
                assert torch.equal(message, random_bytes(size, seed=k + lane))
                assert message.data_ptr() % 16 == 0
        for sender, taken, _ in ends:
            sender.flush()
            assert taken.meter.snapshot().messages == len(SIZES)
            assert taken.failures.empty()


def test_the_parts_of_a_message_are_joined_and_may_be_changed_at_once():
    with server() as hub:
        client, channel = hub.meet()
        taken, lane, left = Taken(channel, 1), client.sender(1, Meter()), Queue()
        parts = [random_bytes(300_000, seed=k) for k in range(3)] + [random_bytes(0)]
        expected = torch.cat(parts)
        lane.send(parts, lambda: left.put("left"))
        for part in parts:
            part.zero_()
        assert torch.equal(taken.next(), expected)
        assert left.get(timeout=WAIT) == "left"
        with pytest.raises(TypeError, match="flat uint8 CPU tensors"):
            lane.send([torch.zeros(3)])


def test_meters_count_every_byte_with_its_head():
    with server() as hub:
        client, channel = hub.meet()
        taken, meter = Taken(channel, 1), Meter()
        lane = client.sender(1, meter)
        lane.send([random_bytes(600_000)])
        taken.next()
        lane.flush()
        size = 600_000 + 3 * 28
        sent, received = meter.snapshot(), taken.meter.snapshot()
        assert (sent.sent, sent.messages, received.received, received.messages) == (size, 1, size, 1)
        assert client.sent.snapshot().sent > size + 28
        until(lambda: channel.received.snapshot().received == client.sent.snapshot().sent)


def test_a_word_overtakes_data_that_waits():
    with server() as hub:
        client, channel = hub.meet(throttle=Throttle(80e6))
        taken, lane = Taken(channel, 1), client.sender(1, Meter())
        lane.send([random_bytes(5_000_000)])  # half a second
        client.tell("urgent")
        began = time.monotonic()
        assert channel.hear(WAIT) == ("urgent", None)
        assert time.monotonic() - began < 0.3
        assert taken.messages.empty()
        assert torch.equal(taken.next(), random_bytes(5_000_000))


def test_an_urgent_message_overtakes_a_large_one_that_has_begun_to_leave():
    with server() as hub:
        client, channel = hub.meet(throttle=Throttle(80e6))
        large, small = Taken(channel, 0), Taken(channel, 1)
        slow, quick = client.sender(0, Meter()), client.sender(1, Meter(), urgent=True)
        content = random_bytes(4_000_000, seed=1)
        slow.send([content])
        until(lambda: large.meter.snapshot().received > 0)
        for k in range(3):
            quick.send([random_bytes(300_000, seed=k)])
        for k in range(3):
            assert torch.equal(small.next(), random_bytes(300_000, seed=k))
        assert large.messages.empty()
        assert torch.equal(large.next(), content)


def test_a_throttled_channel_keeps_to_its_rate_and_delay():
    with server() as hub:
        client, channel = hub.meet(throttle=Throttle(80e6, delay=0.1))
        taken, lane = Taken(channel, 1), client.sender(1, Meter())
        began = time.monotonic()
        for _ in range(10):
            lane.send([random_bytes(500_000)])
        for _ in range(10):
            taken.next()
        assert 0.55 < time.monotonic() - began < 1.0  # half a second for the bytes, and the delay once


def test_the_throttle_of_a_server_is_each_clients_own():
    with server(throttle=lambda: Throttle(80e6)) as hub:
        pairs = [hub.meet() for _ in range(3)]
        taken = [Taken(client, 1) for client, _ in pairs]
        began = time.monotonic()
        for _, channel in pairs:
            channel.sender(1, Meter()).send([random_bytes(2_500_000)])
        for x in taken:
            x.next()
        assert 0.2 < time.monotonic() - began < 0.7


def test_a_message_that_is_longer_than_agreed_breaks_the_channel_of_its_sender_only(caplog):
    with server() as hub:
        bad, channel = hub.meet()
        good, beside = hub.meet()
        taken = Taken(channel, 1, most=1000)
        bad.sender(1, Meter()).send([random_bytes(1001)])
        error = taken.failures.get(timeout=WAIT)
        assert isinstance(error, PacketError)
        assert "announces 1001 bytes, more than the 1000" in str(error)
        with pytest.raises(PeerLost, match="PacketError: message 0 on lane 1 announces 1001 bytes"):
            bad.hear(WAIT)
        assert len([x for x in caplog.records if "was dropped" in x.message]) == 1
        good.tell("still here")
        assert beside.hear(WAIT) == ("still here", None)


def test_more_messages_than_the_window_break_the_channel():
    with server() as hub:
        client, channel = hub.meet()
        taken, lane = Taken(channel, 1, window=2, pace=0.3), client.sender(1, Meter())
        with pytest.raises(PeerLost, match="which is all that was agreed on"):
            for _ in range(20):
                lane.send([random_bytes(10)])
                time.sleep(0.02)
        assert isinstance(taken.failures.get(timeout=WAIT), PacketError)
        assert taken.messages.qsize() == 3  # what had come is taken: one that was being, and two that waited


def test_data_on_a_lane_that_nobody_opened_breaks_the_channel():
    with server() as hub:
        client, channel = hub.meet()
        client.sender(9, Meter()).send([random_bytes(10)])
        with pytest.raises(PacketError, match="lane 9, which was not opened here"):
            channel.hear(WAIT)


def test_a_lane_has_a_number_of_its_own():
    with server() as hub:
        client, channel = hub.meet()
        client.sender(3, Meter())
        Taken(channel, 3)
        with pytest.raises(ValueError, match=r"lane 3 .* was opened before"):
            client.sender(3, Meter())
        with pytest.raises(ValueError, match=r"lane 3 .* was opened before"):
            Taken(channel, 3)
        with pytest.raises(ValueError, match="0 to 65535"):
            client.sender(65536, Meter())


def test_an_aborted_receiver_is_told_nothing_and_its_channel_goes_on():
    with server() as hub:
        client, channel = hub.meet()
        first, second = Taken(channel, 1), Taken(channel, 2)
        lanes = [client.sender(k, Meter()) for k in (1, 2)]
        first.lane.abort()
        for lane in lanes:
            lane.send([random_bytes(1_000_000)])
        assert torch.equal(second.next(), random_bytes(1_000_000))
        client.close()
        assert isinstance(second.failures.get(timeout=WAIT), PeerLost)
        assert first.messages.empty()
        assert first.failures.empty()


def test_an_aborted_sender_wakes_who_waits_and_spares_other_lanes():
    with server() as hub:
        client, channel = hub.meet(throttle=Throttle(8e6))
        taken = Taken(channel, 2)
        Taken(channel, 1)
        first, second = client.sender(1, Meter()), client.sender(2, Meter())
        for _ in range(40):
            first.send([random_bytes(200_000)])
        first.abort()
        with pytest.raises(Closed):
            first.send([random_bytes(1)])
        with pytest.raises(Closed):
            first.flush()
        second.send([random_bytes(1000)])
        assert torch.equal(taken.next(), random_bytes(1000))


def test_what_take_raises_ends_the_lane_and_is_told():
    with server() as hub:
        client, channel = hub.meet()
        failures = Queue()
        channel.receiver(1, most=10, window=9, meter=Meter(), take=lambda _: 1 / 0, failed=failures.put)
        lane = client.sender(1, Meter())
        lane.send([random_bytes(1)])
        assert isinstance(failures.get(timeout=WAIT), ZeroDivisionError)
        lane.send([random_bytes(1)])
        client.tell("well")
        assert channel.hear(WAIT) == ("well", None)
        with pytest.raises(Empty):
            failures.get(timeout=0.1)


def test_everything_said_and_sent_before_a_close_arrives():
    for _ in range(10):
        with server() as hub:
            client, channel = hub.meet()
            taken, broken = Taken(channel, 1), Queue()
            channel.when_broken(broken.put)
            lane = client.sender(1, Meter())
            for k in range(5):
                lane.send([random_bytes(3_000_000, seed=k)])
            client.tell("the end", 5)
            client.close()
            client.close()
            assert channel.hear(WAIT) == ("the end", 5)
            for k in range(5):
                assert torch.equal(taken.next(), random_bytes(3_000_000, seed=k))
            with pytest.raises(PeerLost, match="closed the connection"):
                channel.hear(WAIT)
            assert isinstance(taken.failures.get(timeout=WAIT), PeerLost)
            assert broken.get(timeout=WAIT) is channel.failure
            with pytest.raises(Closed):
                client.tell("too late")


def test_a_word_said_in_passing_is_heard():
    """A client that says one word and leaves may be gone before the server has read it."""
    with server() as hub:
        for k in range(30):
            client = dial(hub.address)
            client.tell("stop", k)
            client.close()
        # Each exactly once; on a busy machine one that came later may be let in before.
        heard = [hub.accepted.get(timeout=WAIT).hear(WAIT) for _ in range(30)]
        assert sorted(heard) == [("stop", k) for k in range(30)]


def test_a_server_that_closes_says_so_and_what_it_said_before_arrives():
    for _ in range(10):
        hub = server()
        with hub as made:
            client, channel = made.meet()
            for k in range(50):
                channel.tell("word", k)
        for k in range(50):
            assert client.hear(WAIT) == ("word", k)
        with pytest.raises(PeerLost, match="the server was closed"):
            client.hear(WAIT)
        assert isinstance(channel.failure, PeerLost)


def test_the_closing_of_one_channel_by_the_server_reaches_its_client_only():
    with server() as hub:
        first, channel = hub.meet()
        second, beside = hub.meet()
        taken, lane = Taken(first, 1), channel.sender(1, Meter())
        lane.send([random_bytes(5_000_000)])
        channel.close()
        assert torch.equal(taken.next(), random_bytes(5_000_000))
        with pytest.raises(PeerLost, match="closed the connection"):
            first.hear(WAIT)
        second.tell("here")
        assert beside.hear(WAIT) == ("here", None)


def test_breaking_off_tells_both_ends_at_once():
    with server() as hub:
        client, channel = hub.meet(throttle=Throttle(1e6))
        Taken(channel, 1)
        there, here = Queue(), Queue()
        channel.when_broken(there.put)
        client.when_broken(here.put)
        lane = client.sender(1, Meter())
        lane.send([random_bytes(5_000_000)])
        began, error = time.monotonic(), RuntimeError("out of coffee")
        client.break_off(error)
        assert here.get(timeout=WAIT) is error
        with pytest.raises(RuntimeError, match="out of coffee"):
            lane.send([random_bytes(1)])
        with pytest.raises(RuntimeError, match="out of coffee"):
            client.hear(WAIT)
        seen = there.get(timeout=WAIT)
        assert isinstance(seen, PeerLost)
        assert "RuntimeError: out of coffee" in str(seen)
        assert time.monotonic() - began < 1.0
        late = Queue()
        client.when_broken(late.put)
        assert late.get(timeout=WAIT) is error
        client.close()


def test_clocks_are_compared():
    with server() as hub:
        client, channel = hub.meet()
        until(lambda: len(client.clock_samples()) >= 4 and len(channel.clock_samples()) >= 4)
        for asked, there, answered in client.clock_samples() + channel.clock_samples():
            assert asked <= there <= answered  # one process, one clock


def test_no_thread_is_left_when_both_ends_are_closed():
    for _ in range(5):
        with server() as hub:
            pairs = [hub.meet() for _ in range(3)]
            for client, channel in pairs:
                Taken(channel, 1)
                Taken(client, 1)
            for client, _ in pairs[:2]:
                client.close()
    until(lambda: threads() == [])


def test_a_server_without_keys_listens_to_its_own_machine_only(caplog):
    for address in ("0.0.0.0:0", "*:0", "10.0.0.7:5555", "example.org:1", "[::]:0"):
        with pytest.raises(AddressError, match="make keys"):
            Listener(address, keys=None, accepted=print)
    caplog.set_level("INFO", "thinpipe")
    with server("localhost:0") as hub:
        assert hub.address.startswith("localhost:")
        assert any("open to every user of this machine" in x.message for x in caplog.records)
        hub.meet()


def test_an_address_that_is_none_or_taken_is_refused():
    for address in ("", "host", "host:port", "host:70000", "a b:1", "tcp://x:1/y", 5555, None):
        with pytest.raises(AddressError, match="host:port"):
            dial(address)
    with server() as hub, pytest.raises(AddressError, match="Address already in use"):
        Listener(hub.address, keys=None, accepted=print)
    assert threads() == []


def test_a_callback_may_close_its_own_channel():
    closing = Queue()

    def accepted(channel):
        channel.tell("no")
        channel.close()
        closing.put(channel)

    listener = Listener("127.0.0.1:0", keys=None, accepted=accepted)
    client = dial(listener.address)
    client.tell("hello")
    assert client.hear(WAIT) == ("no", None)
    with pytest.raises(PeerLost, match="closed the connection"):
        client.hear(WAIT)
    listener.close()


def test_a_callback_that_fails_costs_one_channel(caplog):
    def accepted(channel):
        raise ValueError("a secret of the server")

    listener = Listener("127.0.0.1:0", keys=None, accepted=accepted)
    client = dial(listener.address)
    client.tell("hello")
    with pytest.raises(PeerLost) as told:
        client.hear(WAIT)
    assert "secret" not in str(told.value)
    assert "a secret of the server" in caplog.text
    dial(listener.address).close()
    listener.close()
