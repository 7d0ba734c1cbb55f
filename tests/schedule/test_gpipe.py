"""Schedules are data: they print, parse, and never wait for something that comes later."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinpipe.schedule import Action, Kind, gpipe_backward, gpipe_forward, one_line

actions = st.builds(Action, st.sampled_from(Kind), st.integers(0, 99), st.integers(0, 9999))


@given(actions)
def test_an_action_parses_as_it_prints(action):
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize("text", ["", "F", "F1", "X1.2", "F1.2 ", "f1.2", "F1.2.3", "F-1.2"])
def test_what_is_no_action_is_refused(text):
    with pytest.raises(ValueError, match=r"'F2\.3'"):
        Action.parse(text)


def text(lists):
    return [" ".join(map(str, actions)) for actions in lists]


def test_forward_goes_up_and_backward_comes_down():
    assert text(gpipe_forward(2, 3)) == ["F0.0 F0.1 F0.2", "F1.0 F1.1 F1.2"]
    assert text(gpipe_backward(1, 3)) == ["B0.2 B0.1 B0.0"]


def test_a_recomputation_stands_right_before_its_backward():
    assert text(gpipe_backward(2, 3, frozenset({0, 1})))[1] == "B1.2 R1.1 B1.1 R1.0 B1.0"


@given(n=st.integers(1, 6), m=st.integers(1, 6), data=st.data())
def test_in_one_line_nothing_waits_for_a_later_action(n, m, data):
    recomputed = frozenset(data.draw(st.sets(st.integers(0, m - 1))))
    done = set()
    for action in one_line(gpipe_forward(n, m)):
        assert action.stage == 0 or Action(Kind.FORWARD, action.stage - 1, action.micro) in done
        done.add(action)
    assert len(done) == n * m
    for action in one_line(gpipe_backward(n, m, recomputed)):
        if action.kind is Kind.BACKWARD:
            assert action.stage == n - 1 or Action(Kind.BACKWARD, action.stage + 1, action.micro) in done
            assert action.micro not in recomputed or Action(Kind.RECOMPUTE, action.stage, action.micro) in done
        done.add(action)
    assert len(done) == n * (2 * m + len(recomputed))
