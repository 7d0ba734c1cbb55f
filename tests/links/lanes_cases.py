"""What two ranks do with lanes; each function is a case, played by both, and raises if something is wrong."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist
from lanes_support import MOST, exchange, raises, receiver, sender, zeros

from thinpipe.errors import PacketError, StallError
from thinpipe.links import Closed, Meter, Throttle, hang_up
from thinpipe.links.forecast import FIRST_SIZE, write_header


def random_sizes_both_ways_on_several_lanes(group, me):
    dice = random.Random(0)
    corners = (0, 1, 31, 32, 33, FIRST_SIZE - 33, FIRST_SIZE - 32, FIRST_SIZE - 31)
    lists = [
        [dice.choice((*corners, dice.randrange(1000), dice.randrange(3 << 20))) for _ in range(40)] for _ in range(3)
    ]
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(exchange, group, me, 10 + lane, sizes) for lane, sizes in enumerate(lists)]:
            sent, received = done.result()
            assert sent.sent == received.received and sent.messages == received.messages == 40


def messages_are_taken_in_the_lanes_own_thread(group, me):
    sizes = [random.Random(2).randrange(100_000) for _ in range(12)]
    if me == 0:
        lane = sender(group, 1, 22, window=2)
        for number, size in enumerate(sizes):
            lane.send([zeros(size) + number])
        lane.flush()
        dist.barrier(group=group)
        return
    taken, done = [], threading.Event()

    def take(message):
        taken.append((threading.current_thread().name, message.numel(), set(message.tolist())))
        if len(taken) == len(sizes):
            done.set()

    lane = receiver(group, 0, 22, window=2, take=take)
    assert done.wait(10)
    dist.barrier(group=group)
    assert taken == [("thinpipe lane 22", size, {number}) for number, size in enumerate(sizes)]
    lane.abort()


def who_takes_messages_is_told_once_that_no_more_come(group, me):
    if me == 0:
        lane = sender(group, 1, 23)
        for _ in range(3):
            lane.send([zeros(10)])
        lane.flush()
        dist.barrier(group=group)
        return
    failures, told = [], threading.Event()

    def take(message):
        raise PacketError(f"{message.numel()} zeros are no packet")

    def failed(error):
        failures.append(error)
        told.set()

    lane = receiver(group, 0, 23, take=take, failed=failed)
    assert told.wait(10)
    dist.barrier(group=group)
    lane.abort()
    assert [str(error) for error in failures] == ["10 zeros are no packet"]


def windows_of_one_and_of_many(group, me):
    sizes = [random.Random(1).randrange(200_000) for _ in range(20)]
    exchange(group, me, 20, sizes, window=1)
    exchange(group, me, 21, sizes, window=255)


def alternating_sizes_are_hardly_padded(group, me):
    sizes = [500, 400_000] * 30
    sent, _ = exchange(group, me, 30, sizes)
    # The first window of heads has the initial size, whatever comes.
    assert sent.sent <= sum(sizes) + 2 * FIRST_SIZE + (32 + 256) * len(sizes), sent


def equal_sizes_are_not_padded(group, me):
    sent, _ = exchange(group, me, 31, [100_000] * 20)
    assert sent.sent == 20 * (100_000 + 32), sent


def a_full_window_holds_the_sender_back(group, me):
    message = [zeros(10)]
    if me == 0:
        lane = sender(group, 1, 40, window=2, deadline=0.3)
        for _ in range(4):  # two in the receiver's hands, two under way
            lane.send(message)
        with raises(StallError, "rank 1", "lane 40", "0.3 s"):
            lane.send(message)
        with raises(StallError):
            lane.flush()
        dist.barrier(group=group)
        dist.barrier(group=group)
        lane.send(message)  # a stall is no end: the peer took one
        dist.barrier(group=group)
        lane.flush()
    else:
        lane = receiver(group, 0, 40, window=2)
        dist.barrier(group=group)
        lane.receive()
        lane.receive()
        dist.barrier(group=group)
        for _ in range(3):
            lane.receive()
        dist.barrier(group=group)


def abort_wakes_whoever_waits_and_spares_other_lanes(group, me):
    peer, message = 1 - me, [zeros(10)]
    incoming = receiver(group, peer, 50)
    outgoing = sender(group, peer, 51, window=1)
    outgoing.send(message)  # nobody receives on lane 51

    def wait(call):
        with raises(Closed):
            call()

    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(wait, call) for call in (incoming.receive, lambda: outgoing.send(message), outgoing.flush)]
        time.sleep(0.2)
        assert not any(done.done() for done in waits)
        for _ in range(2):
            incoming.abort()
            outgoing.abort()
        for done in waits:
            done.result()
    wait(incoming.receive)
    wait(lambda: outgoing.send(message))
    wait(outgoing.flush)
    exchange(group, me, 52, [10, 100_000])


def hanging_up_ends_the_threads(group, me):
    lanes = [receiver(group, 1 - me, 60), sender(group, 1 - me, 61, window=1)]
    lanes[1].send([zeros(10)])
    mine = {thread for thread in threading.enumerate() if thread.name in ("thinpipe lane 60", "thinpipe lane 61")}
    assert len(mine) == 2
    for lane in lanes:
        lane.abort()
    dist.barrier(group=group)
    if me == 0:
        hang_up(group, 1)
    for thread in mine:  # the other end's threads end too: their peer is gone
        thread.join(2)
        assert not thread.is_alive()


LIES = {
    "lane": {"lane": 7},
    "window": {"window": 9},
    "sequence number": {"sequence": 3},
    "head size": {"head": 64},
    "accepted": {"length": MOST + 1},
    str(2**63): {"length": 2**63},
}
DAMAGES = {"magic": slice(0, 4), "checksum": slice(28, 32)}


def hostile_headers_are_refused(group, me):
    for lane, word in enumerate((*LIES, *DAMAGES), 70):
        if me == 0:
            head = zeros(FIRST_SIZE)
            truth = {"lane": lane, "window": 4, "sequence": 0, "length": 9, "head": FIRST_SIZE}
            write_header(head, **{**truth, **LIES.get(word, {})})
            head[DAMAGES.get(word, slice(0))] = 0
            group.send([head], 1, 2 * lane).wait()
        else:
            incoming = receiver(group, 0, lane)
            for _ in range(2):
                with raises(PacketError, word):
                    incoming.receive()


def a_short_message_is_no_message(group, me):
    if me == 0:
        group.send([zeros(3)], 1, 2 * 80).wait()
    else:
        with raises(PacketError, "magic"):
            receiver(group, 0, 80).receive()


def a_tail_that_never_comes_is_a_stall(group, me):
    if me == 0:
        head = zeros(FIRST_SIZE)
        write_header(head, lane=81, window=4, sequence=0, length=FIRST_SIZE, head=FIRST_SIZE)
        group.send([head], 1, 2 * 81).wait()
    else:
        with raises(StallError, "rank 0", "lane 81"):
            receiver(group, 0, 81, deadline=0.3).receive()


def a_throttled_lane_keeps_to_its_rate_and_delay(group, me):
    size, count, delay = 1_000_000, 10, 0.05
    if me == 0:
        throttle, meters = Throttle(50e6, delay), [Meter(), Meter()]
        lanes = [sender(group, 1, 90 + i, throttle=throttle, meter=meter) for i, meter in enumerate(meters)]
        dist.barrier(group=group)
        for i in range(count):
            lanes[i % 2].send([zeros(size)])
        for lane, meter in zip(lanes, meters, strict=True):
            lane.flush()
            assert meter.snapshot().peak * 8 < 55e6, meter.snapshot()
    else:
        lanes = [receiver(group, 0, lane) for lane in (90, 91)]
        dist.barrier(group=group)
        start = time.monotonic()
        for i in range(count):
            lanes[i % 2].receive()
        took = time.monotonic() - start
        due = count * (size + 32) * 8 / 50e6 + delay
        assert 0.95 * due < took < 1.05 * due, (took, due)


CASES = (
    random_sizes_both_ways_on_several_lanes,
    messages_are_taken_in_the_lanes_own_thread,
    who_takes_messages_is_told_once_that_no_more_come,
    windows_of_one_and_of_many,
    alternating_sizes_are_hardly_padded,
    equal_sizes_are_not_padded,
    a_full_window_holds_the_sender_back,
    abort_wakes_whoever_waits_and_spares_other_lanes,
    hostile_headers_are_refused,
    a_short_message_is_no_message,
    a_tail_that_never_comes_is_a_stall,
    a_throttled_lane_keeps_to_its_rate_and_delay,
    hanging_up_ends_the_threads,
)
