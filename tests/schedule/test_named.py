"""Schedules by name: complete, free of deadlock for any workers, and as short as theory says where it says anything."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thinpipe.errors import ScheduleError
from thinpipe.schedule import SCHEDULES, Action, Job, Kind, Times, in_turn, plan, read, simulate, validate, write
from thinpipe.schedule.job import parse_workers


def lines(name, *shape):
    return write(plan(name, *shape)[1]).splitlines()


def held(job, actions):
    """Counts the most micro-batches a worker holds at once, from their forward to the end of their backward."""
    now = most = 0
    for action in actions:
        now += action.kind is Kind.FORWARD
        now -= action.kind is (Kind.WEIGHT if job.split else Kind.BACKWARD)
        most = max(most, now)
    return most


@st.composite
def jobs(draw):
    stages = draw(st.integers(1, 7))
    width = draw(st.integers(1, stages))
    others = [draw(st.integers(0, width - 1)) for _ in range(stages - width)]
    workers = draw(st.permutations([*range(width), *others]))
    pairs = st.tuples(st.integers(0, stages - 1), st.integers(0, stages - 1)).filter(lambda pair: pair[0] < pair[1])
    skips = draw(st.lists(pairs, max_size=3)) if stages > 1 else []
    return draw(st.sampled_from(list(SCHEDULES))), stages, draw(st.integers(1, 9)), tuple(workers), tuple(skips)


@settings(deadline=None, max_examples=300)
@given(jobs())
def test_every_schedule_is_complete_and_never_waits_in_a_circle(shape):
    job, lists = plan(*shape)
    order = validate(job, lists)
    assert sorted(map(str, order)) == sorted(map(str, job.actions()))
    assert read(write(lists)) == lists
    timeline = simulate(job, lists, Times(encode=0.1, wire=0.5, decode=0.1))
    assert [[span.action for span in spans] for spans in timeline.workers] == lists
    assert 0 <= timeline.bubble < 1


def test_one_forward_one_backward_is_what_the_books_say():
    assert lines("1f1b", 3, 4) == [
        "0: F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3",
        "1: F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 B1.3",
        "2: F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3",
    ]


def test_gpipe_goes_all_the_way_forward_first():
    assert lines("gpipe", 2, 3) == ["0: F0.0 F0.1 F0.2 B0.2 B0.1 B0.0", "1: F1.0 F1.1 F1.2 B1.2 B1.1 B1.0"]


def test_a_u_shape_is_a_map():
    """The client holds the first and the last stage, the server the middle."""
    job, lists = plan("gpipe", 3, 1, (0, 1, 0))
    assert write(lists) == "0: F0.0 F2.0 B2.0 B0.0\n1: F1.0 B1.0\n"
    assert job.width == 2


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 4), (4, 8), (4, 2), (8, 16)])
def test_lengths_are_those_of_theory(n, m):
    """A forward takes 1 and a backward 2; the first and the last micro-batch pass all stages alone."""
    length = {name: simulate(*plan(name, n, m), Times()).length for name in SCHEDULES}
    assert length["gpipe"] == length["1f1b"] == 3 * (m + n - 1)
    assert length["zb"] == 3 * m + n - 1 if m >= n else length["zb"] < length["1f1b"]


@pytest.mark.parametrize(("width", "depth", "m"), [(2, 2, 8), (4, 2, 8), (4, 2, 16), (2, 4, 8)])
def test_interleaving_shrinks_the_bubble_by_the_stages_of_a_worker(width, depth, m):
    job, lists = plan("interleaved", width * depth, m, in_turn(width * depth, width))
    assert simulate(job, lists, Times()).length == 3 * m * depth + 3 * (width - 1)
    assert [held(job, actions) for actions in lists] == [
        2 * (width - k - 1) + (depth - 1) * width + 1 for k in range(width)
    ]


@pytest.mark.parametrize("m", [1, 3, 8, 20])
def test_few_micro_batches_are_held(m):
    job, lists = plan("1f1b", 4, m)
    assert [held(job, actions) for actions in lists] == [min(m, 4 - j) for j in range(4)]
    job, lists = plan("zb", 4, m)
    assert all(held(job, actions) <= 4 for actions in lists)


def test_a_slow_link_is_waited_for_and_carries_one_message_at_a_time():
    job, lists = plan("gpipe", 2, 3)
    timeline = simulate(job, lists, Times(encode=0.25, wire=2.0, decode=0.5))
    there = timeline.links[0, 1]
    assert [(span.start, span.end) for span in there] == [(1.25, 3.25), (3.25, 5.25), (5.25, 7.25)]
    assert timeline.workers[1][0].start == 3.75
    assert (1, 0) in timeline.links and len(timeline.links) == 2


def test_stages_of_one_worker_send_nothing():
    assert not simulate(*plan("1f1b", 3, 4, (0, 0, 0)), Times(wire=100.0)).links


def test_a_skip_is_waited_for():
    job = Job(3, 1, (0, 1, 2), skips=((0, 2),))
    assert Action(Kind.FORWARD, 0, 0) in job.needs(Action(Kind.FORWARD, 2, 0))
    assert Action(Kind.BACKWARD, 2, 0) in job.needs(Action(Kind.BACKWARD, 0, 0))
    assert (0, 2) in simulate(*plan("1f1b", 3, 1, None, ((0, 2),)), Times(wire=1.0)).links


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0: F0.0 B0.0\n1: F1.0", "B1.0 is not done"),
        ("0: F0.0 F0.0 B0.0\n1: F1.0 B1.0", "F0.0 is done twice"),
        ("0: F0.0 B0.0 F2.0\n1: F1.0 B1.0", "F2.0 is no part of the job"),
        ("0: F0.0 B0.0 F1.0\n1: B1.0", "F1.0 at worker 0 is not that worker's"),
        ("0: F0.0 B0.0", "2 workers need a list each, got 1"),
        ("0: B0.0 F0.0\n1: F1.0 B1.0", "worker 0 is at B0.0 and waits for F0.0, B1.0; worker 1 is at F1.0 and waits"),
    ],
)
def test_what_cannot_be_executed_is_refused_with_a_reason(text, why):
    with pytest.raises(ScheduleError, match=why.replace(".", r"\.")):
        validate(Job(2, 1, (0, 1)), read(text))


def test_a_recomputation_may_be_added_where_it_is_in_time():
    job = Job(1, 1, (0,))
    assert validate(job, read("0: F0.0 R0.0 B0.0"))
    with pytest.raises(ScheduleError, match=r"waits for R0\.0"):
        validate(job, read("0: F0.0 B0.0 R0.0"))


@pytest.mark.parametrize("text", ["1: F0.0", "F0.0", "0: F0.0\n2: F1.0", "0: F0.0 X"])
def test_text_that_is_no_schedule_is_refused_with_its_line(text):
    with pytest.raises(ValueError, match="line"):
        read(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: plan("2f2b", 2, 2),
        lambda: plan("gpipe", 0, 2),
        lambda: plan("gpipe", 2, 0),
        lambda: plan("gpipe", 3, 2, (0, 1)),
        lambda: plan("gpipe", 2, 2, (0, 2)),
        lambda: plan("gpipe", 3, 2, None, ((2, 1),)),
        lambda: parse_workers("0,x"),
    ],
)
def test_jobs_that_there_cannot_be_are_refused(make):
    with pytest.raises(ValueError, match=r"got|there are"):
        make()
