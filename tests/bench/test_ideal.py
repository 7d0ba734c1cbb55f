"""The formula of the ideal is the length of the schedule, counted action by action."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinpipe.bench.ideal import equal_stages, partition, pipeline_time
from thinpipe.schedule import Kind, gpipe_backward, gpipe_forward

TIMES = st.integers(0, 50)


def counted(forward, backward, m, checkpoint):
    """Plays the schedule: an action begins when its stage is free and what it waits for is done."""
    n = len(forward)
    recomputed = frozenset(range({"always": m, "except_last": m - 1, "never": 0}[checkpoint]))
    done, now = {}, 0
    for half in (gpipe_forward(n, m), gpipe_backward(n, m, recomputed)):
        free = [now] * n
        left = [list(actions) for actions in half]
        while any(left):
            for j in range(n):
                while left[j]:
                    action = left[j][0]
                    source = {Kind.FORWARD: j - 1, Kind.BACKWARD: j + 1}.get(action.kind, -1)
                    waits = (action.kind, source, action.micro)
                    if 0 <= source < n and waits not in done:
                        break
                    took = backward[j] if action.kind is Kind.BACKWARD else forward[j]
                    free[j] = max(free[j], done.get(waits, 0)) + took
                    done[action.kind, j, action.micro] = free[j]
                    left[j].pop(0)
        now = max(free)
    return now


@given(
    stages=st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=6),
    m=st.integers(1, 7),
    checkpoint=st.sampled_from(["always", "except_last", "never"]),
)
def test_the_formula_is_the_length_of_the_schedule(stages, m, checkpoint):
    forward, backward = map(list, zip(*stages, strict=True))
    assert pipeline_time(forward, backward, m, checkpoint) == counted(forward, backward, m, checkpoint)


def test_the_drawing_of_the_docstring_takes_twenty():
    assert pipeline_time([1, 2, 1], [1, 2, 1], 3, "except_last") == 20


@pytest.mark.parametrize(("n", "m"), [(2, 1), (2, 8), (4, 4), (8, 32)])
def test_equal_stages_that_recompute_nothing_have_the_well_known_ideal(n, m):
    assert partition([1.0] * n, [2.0] * n, m, "never") == pytest.approx(equal_stages(n, m))


def test_recomputation_is_work_that_one_device_does_not_have():
    assert partition([1.0], [2.0], 1, "always") == pytest.approx(3 / 4)
    assert partition([1.0] * 8, [2.0] * 8, 1000, "except_last") == pytest.approx(6, rel=0.01)
