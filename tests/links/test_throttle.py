"""An emulated link is as slow as it is told, and no slower. Lanes over one are tested in test_lanes.py."""

import itertools
import threading
import time

import pytest

from thinpipe.links import Throttle, parse_rate


@pytest.mark.parametrize(
    ("text", "rate"), [("50mbit", 50e6), ("1.5gbit", 1.5e9), (" 64 kbit ", 64e3), ("8000", 8000), ("9Bit", 9)]
)
def test_rates_are_read(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "mbit", "50mb", "50 mbit/s", "-1kbit", "0", "1e6", "nan"])
def test_what_is_no_rate_says_how_to_write_one(text):
    with pytest.raises(ValueError, match=r"is not a rate; write .* mbit"):
        parse_rate(text)


@pytest.mark.parametrize(("rate", "delay"), [(0, 0), (-1, 0), (float("nan"), 0), (1, -0.1), (1, float("inf"))])
def test_links_that_cannot_be_are_refused(rate, delay):
    with pytest.raises(ValueError, match=r"of a link in .* must be a finite number"):
        Throttle(rate, delay)


def arrivals(throttle, sizes):
    """Delivers messages of these sizes at once; tells when each was due, having seen that it came then."""
    start, came, done = time.monotonic(), [], threading.Semaphore(0)

    def arrive():
        came.append(time.monotonic() - start)
        done.release()

    due = [throttle.deliver(size, arrive) - start for size in sizes]
    for _ in sizes:
        assert done.acquire(timeout=10)
    # Never early; how late depends on who else needs the processor.
    assert all(then <= now < then + 0.3 for then, now in zip(sorted(due), came, strict=True))
    return due


def test_messages_leave_one_after_the_other_at_the_rate():
    assert arrivals(Throttle(50e6), [62_500] * 20) == pytest.approx([0.01 * i for i in range(1, 21)], abs=0.005)


def test_messages_from_several_threads_share_the_rate():
    throttle, start, due = Throttle(50e6), time.monotonic(), []

    def deliver():
        due.extend(throttle.deliver(62_500, lambda: None) - start for _ in range(5))

    threads = [threading.Thread(target=deliver) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    gaps = [after - before for before, after in itertools.pairwise(sorted(due))]
    assert len(gaps) == 19 and min(gaps) > 0.0099


def test_a_delay_shifts_arrivals_and_costs_no_throughput():
    due = arrivals(Throttle(50e6, 0.1), [62_500] * 5)
    assert due == pytest.approx([0.1 + 0.01 * i for i in range(1, 6)], abs=0.005)
    assert arrivals(Throttle(None, 0.1), [10**9] * 3) == pytest.approx([0.1] * 3, abs=0.005)


def test_an_idle_link_saves_nothing_up():
    throttle = Throttle(50e6)
    arrivals(throttle, [10])
    time.sleep(0.1)
    assert arrivals(throttle, [625_000]) == pytest.approx([0.1], abs=0.005)


def test_what_is_asked_for_takes_the_way_there_and_back():
    throttle = Throttle(50e6, 0.05)
    head = throttle.deliver(62_500, lambda: None)
    tail = throttle.deliver(62_500, lambda: None, asked_after=head)
    assert tail - head == pytest.approx(0.05 + 0.01 + 0.05)


def test_the_thread_of_an_idle_throttle_ends_and_comes_back(monkeypatch):
    monkeypatch.setattr("thinpipe.links.throttle._IDLE", 0.01)
    throttle = Throttle(None)
    for _ in range(2):
        arrivals(throttle, [1])
        thread = throttle._thread
        if thread is not None:
            thread.join(5)
        assert throttle._thread is None
