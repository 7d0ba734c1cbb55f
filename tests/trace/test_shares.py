"""Where the time went, in numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinpipe.schedule import SCHEDULES
from thinpipe.trace import Span, Trace, shares, traffic
from thinpipe.trace.intervals import common, length, union, without
from trace_support import recorded, simulated

INTERVALS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair))), max_size=9
)


@given(some=INTERVALS, others=INTERVALS)
def test_intervals_are_sets_of_moments(some, others):
    def moments(intervals):
        return {moment for start, end in intervals for moment in range(start, end)}

    assert moments(union(some)) == moments(some)
    assert moments(common(some, others)) == moments(some) & moments(others)
    assert moments(without(some, others)) == moments(some) - moments(others)
    assert length(some) == len(moments(some))


@pytest.mark.parametrize("name", SCHEDULES)
def test_shares_of_a_simulated_step_are_those_of_the_simulator(name):
    trace, timeline = simulated(name, stages=4)
    each = shares(trace)
    assert sum(one.bubble for one in each) / len(each) == pytest.approx(timeline.bubble, abs=0.02)
    for one in each:
        assert one.compute + one.bubble + one.rest == pytest.approx(1)


def test_shares_of_a_recorded_run_add_up_in_any_window():
    trace = recorded()
    for window in (None, trace.last_steps(1), (0.001, 0.004)):
        for one in shares(trace, window):
            assert one.compute + one.bubble + one.rest == pytest.approx(1)
            assert all(0 <= share <= 1 for share in (one.compute, one.bubble, one.rest, one.wire))


def test_time_between_steps_is_no_bubble():
    spans = [
        Span(0, "compute", "F0.0", 0.0, 1.0, {"step": 0}),
        Span(1, "compute", "F1.0", 1.0, 2.0, {"step": 0}),
        Span(0, "compute", "F0.0", 8.0, 9.0, {"step": 1}),
        Span(1, "compute", "F1.0", 9.0, 10.0, {"step": 1}),
    ]
    for one in shares(Trace.of(spans)):
        assert (one.compute, one.bubble) == pytest.approx((0.2, 0.2))
        assert one.rest == pytest.approx(0.6) and one.hidden is None


def test_the_part_of_the_wire_under_computation_is_found():
    spans = [
        Span(0, "compute", "F0.0", 0.0, 4.0),
        Span(0, "wire", "F0.0", 1.0, 3.0, {"way": "out"}),
        Span(0, "wire", "B1.0", 2.0, 6.0, {"way": "in"}),
        Span(0, "compute", "B0.0", 6.0, 8.0),
    ]
    (one,) = shares(Trace.of(spans))
    assert one.wire == pytest.approx(5 / 8) and one.hidden == pytest.approx(3 / 5)
    assert (one.compute, one.bubble) == pytest.approx((6 / 8, 2 / 8))


def test_bytes_are_counted_once_though_both_ends_recorded_them():
    spans = [
        Span(0, "wire", "F0.0", 0.0, 1.0, {"peer": 1, "bytes": 100}),
        Span(1, "wire", "F0.0", 0.5, 1.0, {"peer": 0, "bytes": 100, "way": "in"}),
        Span(0, "wire", "F0.1", 2.0, 3.0, {"peer": 1, "bytes": 300}),
        Span(0, "wire", "B1.0", 3.0, 5.0, {"peer": 1, "bytes": 50, "way": "in"}),
        Span(0, "wire", "F0.2", 5.0, 6.0, {"peer": 1}),
    ]
    there, back = traffic(Trace.of(spans))
    assert (there.source, there.target, there.messages, there.bytes, there.rate) == (0, 1, 2, 400, 200.0)
    assert (back.source, back.target, back.messages, back.bytes, back.rate) == (1, 0, 1, 50, 25.0)
    (inside,) = traffic(Trace.of(spans), (1.5, 4.0))
    assert inside.bytes == 300
