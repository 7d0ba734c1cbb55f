"""Learning rates against what the schedules are in closed form."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinpipe.train import resolved
from thinpipe.train.rates import lr_at, warmup_steps


def rates(total, per_epoch, **changes):
    recipe = resolved("digits", {"lr": 0.5, **changes})
    return [lr_at(recipe, step, total, per_epoch) for step in range(total)]


def test_a_warm_up_grows_by_equal_parts_and_begins_above_zero():
    # The documents' first epoch was at a rate of exactly zero.
    assert rates(10, 5, warmup=1) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5] + [0.5] * 5)
    assert rates(10, 5, warmup=0.2)[:3] == pytest.approx([0.25, 0.5, 0.5])


def test_a_cosine_goes_down_as_one_after_its_warm_up():
    found = rates(100, 10, warmup=2, lr_schedule="cosine")
    assert found[20:] == pytest.approx([0.25 * (1 + math.cos(math.pi * k / 80)) for k in range(80)])
    assert found[20] == 0.5 and found[60] == pytest.approx(0.25) and 0 < found[-1] < 0.001


def test_a_polynomial_is_a_straight_line_to_zero():
    found = rates(50, 10, warmup=0.2, lr_schedule="polynomial")
    assert found[10:] == pytest.approx([0.5 * (1 - k / 40) for k in range(40)])


def test_a_warm_up_may_be_a_number_of_steps_and_ends_with_the_last_one():
    assert rates(10, 5, warmup=0, warmup_steps=4) == pytest.approx([0.125, 0.25, 0.375] + [0.5] * 7)
    assert rates(10, 5, warmup=0, warmup_steps=500)[-1] == 0.5


@pytest.mark.parametrize(
    ("name", "total", "per_epoch", "steps"),
    [
        ("cifar10-finetune", 40 * 196, 196, 784),
        ("cifar10-scratch", 200 * 48, 48, 960),
        ("rte", 20 * 77, 77, 154),
        ("rte-data-parallel", 20 * 77, 77, 500),
        ("cola", 20 * 267, 267, 320),
        ("cola-simulated", 40 * 267, 267, 500),
        ("cola-fairseq", 10 * 535, 535, 321),
    ],
)
def test_the_documents_warm_ups_are_as_long_as_they_were(name, total, per_epoch, steps):
    assert warmup_steps(resolved(name), total, per_epoch) == steps


@given(
    total=st.integers(1, 500),
    per_epoch=st.integers(1, 50),
    warmup=st.floats(0, 60),
    schedule=st.sampled_from(["constant", "cosine", "polynomial"]),
)
def test_every_step_has_a_rate_above_zero_and_none_above_the_highest(total, per_epoch, warmup, schedule):
    found = rates(total, per_epoch, warmup=warmup, lr_schedule=schedule)
    assert all(0 < rate <= 0.5 for rate in found)
