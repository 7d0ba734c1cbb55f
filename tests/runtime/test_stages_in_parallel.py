"""Stages on the CPU work at the same time, forward and backward. Proven by stages that wait for each other."""

import threading

import pytest
import torch
from torch import nn

from support import CHECKPOINT_MODES, WAIT, Meet
from thinpipe import Pipe


class MeetForward(nn.Module):
    """Waits for the other stage in the forward of some micro-batches."""

    def __init__(self, barrier, micro_batches):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.barrier, self.micro_batches = barrier, micro_batches

    def forward(self, x):
        if int(x[0, 0]) in self.micro_batches:
            self.barrier.wait(WAIT)
        return x * self.scale


class MeetBackward(MeetForward):
    """Waits for the other stage in the backward of some micro-batches."""

    def forward(self, x):
        return Meet.apply(x * self.scale, self.barrier) if int(x[0, 0]) in self.micro_batches else x * self.scale


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_the_first_stage_computes_the_next_micro_batch_while_the_second_computes_this_one(checkpoint):
    barrier = threading.Barrier(2)
    model = nn.Sequential(MeetForward(barrier, {1}), MeetForward(barrier, {0}))
    pipe = Pipe(model, [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint=checkpoint)
    with torch.no_grad():
        pipe(torch.arange(2.0).reshape(2, 1))


def test_the_second_stage_goes_backward_on_the_next_micro_batch_while_the_first_does_on_this_one():
    barrier = threading.Barrier(2)
    model = nn.Sequential(MeetBackward(barrier, {1}), MeetBackward(barrier, {0}))
    pipe = Pipe(model, [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint="never")
    pipe(torch.arange(2.0).reshape(2, 1)).sum().backward()


def test_a_stage_recomputes_before_its_gradient_has_come():
    """The second stage's backward waits for the first stage's recomputation, which must need no gradient."""
    barrier = threading.Barrier(2)

    class Recomputed(MeetForward):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 2:
                self.barrier.wait(WAIT)
            return x * self.scale

    model = nn.Sequential(Recomputed(barrier, set()), MeetBackward(barrier, {0}))
    pipe = Pipe(model, [1, 1], devices=["cpu"] * 2, chunks=1, checkpoint="always")
    pipe(torch.zeros(1, 1)).sum().backward()


def test_cores_are_shared_among_stages_and_the_caller_keeps_its_own():
    seen = []

    class Threads(nn.Module):
        def forward(self, x):
            seen.append(torch.get_num_threads())
            return x

    torch.set_num_threads(4)
    try:
        Pipe(nn.Sequential(Threads(), Threads()), [1, 1], devices=["cpu"] * 2, chunks=2)(torch.rand(2, 1))
        assert seen == [2] * 4 and torch.get_num_threads() == 4
        inherited = []
        thread = threading.Thread(target=lambda: inherited.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert inherited == [4], "new threads start with the caller's number"
        seen.clear()
        Pipe(nn.Sequential(Threads(), Threads()), [1, 1], devices=["cpu"] * 2, chunks=1)(torch.rand(2, 1))
        assert seen == [4] * 2, "one micro-batch leaves nothing to share"
    finally:
        torch.set_num_threads(1)
