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


def test_a_lap_has_what_was_counted_since_the_last_one(meter, clock):
    meter.count(raw=400, encode=0.1, decode=0.2, stall=0.3)
    clock.now += 2
    meter.count_sent(100, since=clock.now - 1)
    first = meter.lap()
    assert (first.sent, first.received, first.raw, first.messages) == (100, 0, 400, 1)
    assert (first.encode, first.decode, first.stall, first.wire, first.seconds) == (0.1, 0.2, 0.3, 1, 2)
    assert first.average == 50
    clock.now += 4
    meter.count(raw=30, stall=0.7)
    meter.count_received(20)
    second = meter.lap()
    assert (second.sent, second.received, second.raw, second.messages) == (0, 20, 30, 1)
    assert (second.encode, second.decode, second.stall, second.wire, second.seconds) == (0, 0, 0.7, 0, 4)
    assert second.average == 5


def test_laps_leave_the_totals_alone(clock):
    lapped, other = Meter(clock=clock), Meter(clock=clock)
    for size in (100, 900, 300):
        clock.now += 0.35
        for meter in (lapped, other):
            meter.count(raw=size, encode=0.25)
            meter.count_sent(size, since=clock.now - 0.3)
            meter.count_received(size // 2)
        lapped.lap()
        assert lapped.snapshot() == other.snapshot()


def test_a_lap_has_its_own_peak(meter, clock):
    clock.now = 200.01
    meter.count_received(900)
    clock.now = 200.2
    assert meter.lap().peak == pytest.approx(9000)
    clock.now = 200.51
    meter.count_received(200)
    clock.now = 200.7
    assert meter.lap().peak == pytest.approx(2000)
    assert meter.lap().peak == 0
    assert meter.snapshot().peak == pytest.approx(9000)


def test_a_window_that_two_laps_share_is_a_busy_one_for_both(meter, clock):
    """Batches of 30 ms once had peaks below their averages: each saw a third of a window."""
    clock.now = 200.01
    meter.count_received(100)
    clock.now = 200.03
    assert meter.lap().peak == pytest.approx(1000)
    clock.now = 200.05
    meter.count_received(300)
    assert meter.lap().peak == meter.snapshot().peak == pytest.approx(4000)


def test_a_message_under_way_at_a_lap_belongs_to_the_lap_that_it_ends_in(meter, clock):
    start = clock.now
    clock.now = start + 0.5
    assert meter.lap().sent == 0
    clock.now = start + 1
    meter.count_sent(1000, since=start)
    lap = meter.lap()
    assert (lap.sent, lap.wire, lap.seconds) == (1000, 1, 0.5)
    assert lap.peak == pytest.approx(1000)


def test_reset_begins_a_lap(meter, clock):
    clock.now += 1
    meter.count_received(100)
    meter.reset()
    clock.now += 1
    assert (meter.lap().seconds, meter.snapshot().received) == (1, 0)


def test_laps_among_threads_lose_nothing():
    meter = Meter()

    def count():
        for _ in range(2000):
            meter.count(raw=1)
            meter.count_received(1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    laps = [meter.lap() for _ in range(200)]
    for thread in threads:
        thread.join()
    laps.append(meter.lap())
    assert (
        sum(lap.raw for lap in laps) == sum(lap.received for lap in laps) == sum(lap.messages for lap in laps) == 8000
    )
