"""Clocks of ranks are brought together, within what is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinpipe.errors import TraceError
from thinpipe.trace import Offset, Sample, Span, estimate, merge

NANOSECONDS = st.integers(0, 10**10)


@given(
    ahead=st.integers(-(10**13), 10**13),
    questions=st.lists(st.tuples(NANOSECONDS, NANOSECONDS, NANOSECONDS), min_size=1, max_size=8),
)
def test_the_true_offset_is_within_the_uncertainty_however_unequal_the_ways(ahead, questions):
    samples = [Sample(asked, asked + out + ahead, asked + out + back) for asked, out, back in questions]
    offset = estimate(samples)
    assert abs(offset.seconds - ahead) <= offset.uncertainty
    assert offset.uncertainty == min(out + back for _, out, back in questions) / 2
    assert abs((-offset).seconds + ahead) <= (-offset).uncertainty


def test_equal_ways_give_the_offset_itself():
    assert estimate([(10.0, 112.0, 14.0), (20.0, 121.0, 22.0)]) == Offset(100.0, 1.0)


def test_spans_come_onto_the_clock_of_rank_0_and_begin_at_0():
    spans = [
        Span(1, "compute", "F1.0", 106.0, 108.0),
        Span(0, "compute", "F0.0", 5.0, 6.0),
        Span(2, "compute", "F2.0", -12.0, -11.0),
    ]
    trace = merge(spans, {1: Offset(100.0, 0.25), 2: Offset(-20.0, 0.5)})
    assert [(span.name, span.start, span.end) for span in trace.spans] == [
        ("F0.0", 0.0, 1.0),
        ("F1.0", 1.0, 3.0),
        ("F2.0", 3.0, 4.0),
    ]
    assert trace.uncertainty == {1: 0.25, 2: 0.5}


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(TraceError, match="got none"):
        estimate([])
    with pytest.raises(TraceError, match="after its question"):
        estimate([(2.0, 0.0, 1.0)])
    with pytest.raises(TraceError, match="clock of rank 3 is unknown; offsets are given for \\[1\\]"):
        merge([Span(3, "compute", "F0.0", 0.0, 1.0)], {1: Offset(0.0, 0.0)})
    with pytest.raises(TraceError, match="was anything recorded"):
        merge([], {})
