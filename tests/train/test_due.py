"""A run is saved after so many steps, or as often as costs next to nothing."""

from thinpipe.train.due import SECONDS, SHARE, Due


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_who_says_after_how_many_steps_has_it_so_whatever_the_time():
    clock = Clock()
    due = Due(10, clock)
    assert [step for step in range(1, 31) if due.after(step)] == [10, 20, 30]
    clock.now += 10 * SECONDS
    assert not due.after(31)


def test_otherwise_it_is_after_some_seconds():
    clock = Clock()
    due = Due(None, clock)
    assert not due.after(50)
    clock.now += SECONDS
    assert due.after(51)
    with due.saving():
        clock.now += 0.1
    assert not due.after(52)
    clock.now += SECONDS
    assert due.after(53)


def test_what_takes_long_to_save_is_saved_less_often():
    clock = Clock()
    due = Due(None, clock)
    with due.saving():
        clock.now += 30
    clock.now += 30 * SHARE - 1
    assert not due.after(7)
    clock.now += 1
    assert due.after(8)
