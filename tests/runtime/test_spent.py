"""A pipe tells how the threads of its stages spend their time."""

import time

import pytest
import torch
from torch import nn

from thinpipe import Pipe

NAP = 0.03


class Slow(nn.Module):
    """Takes its time, forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        time.sleep(NAP)
        return self.layer(x)


def one_step(pipe):
    began = time.perf_counter()
    pipe(torch.ones(8, 4)).sum().backward()
    return time.perf_counter() - began


def test_a_slow_stage_computes_while_the_others_wait_for_it():
    pipe = Pipe(nn.Sequential(nn.Linear(4, 4), Slow(), nn.Linear(4, 4)), [1, 1, 1], chunks=4, checkpoint="never")
    one_step(pipe)
    before = pipe.spent()
    seconds = one_step(pipe)
    first, slow, last = (after.since(earlier) for after, earlier in zip(pipe.spent(), before, strict=True))
    assert slow.computed >= 4 * NAP
    # The first is through at once and the last has nothing yet: both wait for all that the slow one takes.
    for other in (first, last):
        assert other.waited >= 3.5 * NAP and other.computed < slow.computed
    for stage in (first, slow, last):
        assert min(stage.computed, stage.encode, stage.decode, stage.waited) >= 0
        assert 4 * NAP <= stage.total <= seconds


def test_packing_and_unpacking_are_counted_where_they_happen():
    pipe = Pipe(nn.Sequential(nn.Linear(16, 4096), nn.Linear(4096, 2)), [1, 1], chunks=2, codec="sort:6+2")
    with torch.no_grad():
        for _ in range(3):
            pipe(torch.randn(256, 16))
    (there, _), (first, second) = *pipe.traffic(), pipe.spent()
    assert there.packed < 0.3 * there.raw
    # What has nothing to pack or unpack asks whether there is.
    assert first.encode > 20 * first.decode and second.decode > 20 * second.encode


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_a_failed_step_leaves_times_that_go_on(checkpoint):
    pipe = Pipe(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), [1, 1], chunks=2, checkpoint=checkpoint)
    one_step(pipe)
    before = pipe.spent()
    with pytest.raises(RuntimeError):
        pipe(torch.ones(8, 3))
    seconds = one_step(pipe)
    for after, earlier in zip(pipe.spent(), before, strict=True):
        assert 0 < after.since(earlier).computed <= seconds


def test_a_model_that_is_run_as_it_is_has_no_times():
    pipe = Pipe(nn.Sequential(nn.Linear(4, 4)), [1])
    assert pipe.spent() == [None]
    one_step(pipe)
    assert pipe.spent() == [None]
