"""A meter adds up what a lane carries, in any thread."""

import dataclasses
import threading

import pytest

from thinpipe.links import Meter


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def meter(clock):
    return Meter(clock=clock)


def test_everything_is_added_up(meter, clock):
    meter.count(raw=400, encode=0.1)
    meter.count(raw=400, decode=0.2, stall=0.3)
    clock.now += 2
    meter.count_sent(100, since=clock.now - 1)
    meter.count_sent(50, since=clock.now - 1, messages=0)
    meter.count_received(25)
    reading = meter.snapshot()
    assert (reading.sent, reading.received, reading.raw, reading.messages) == (150, 25, 800, 2)
    assert (reading.encode, reading.decode, reading.stall, reading.seconds) == (0.1, 0.2, 0.3, 2)
    assert reading.average == 175 / 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        reading.sent = 1


def test_messages_that_overlap_on_the_wire_count_their_time_once(meter, clock):
    start = clock.now
    for _ in range(4):
        clock.now += 1
        meter.count_sent(10, since=start)
    assert meter.snapshot().wire == 4
    clock.now += 5
    meter.count_sent(10, since=clock.now - 2)
    assert meter.snapshot().wire == 6


def test_the_peak_of_a_long_message_is_its_rate(meter, clock):
    clock.now += 10
    meter.count_sent(1000, since=clock.now - 1)
    assert meter.snapshot().peak == pytest.approx(1000)


def test_the_peak_is_that_of_the_busiest_tenth_of_a_second(meter, clock):
    for _ in range(3):
        meter.count_received(100)
        clock.now += 1
    clock.now += 0.05
    for _ in range(3):
        meter.count_received(100)
    assert meter.snapshot().peak == pytest.approx(3000)
    clock.now += 1
    meter.count_received(1)
    assert meter.snapshot().peak == pytest.approx(3000)


def test_reset_starts_anew(meter, clock):
    meter.count(raw=1, encode=1)
    meter.count_received(100)
    clock.now += 1
    meter.count_sent(100, since=clock.now - 1)
    meter.reset()
    assert set(dataclasses.astuple(meter.snapshot())) == {0}


def test_threads_lose_nothing():
    meter = Meter()

    def count():
        for _ in range(2000):
            meter.count(raw=1)
            meter.count_received(1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (meter.snapshot().raw, meter.snapshot().received, meter.snapshot().messages) == (8000, 8000, 8000)
