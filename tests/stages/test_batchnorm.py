"""Deferred batch norm: one update a batch, unbiased, precise, and invisible in state_dict."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from thinpipe import Pipe
from thinpipe.stages.batchnorm import Tally, defer_batch_norm


@given(sizes=st.lists(st.integers(2, 9), min_size=1, max_size=6), shift=st.sampled_from([0.0, 1e3, -1e6]))
def test_merged_statistics_are_those_of_all_values(sizes, shift):
    """A sum of squares would lose everything at a mean of a million in float32; the merge loses nothing."""
    pieces = [torch.randn(size, 3) + shift for size in sizes]
    tally = Tally()
    for piece in pieces:
        tally.add(len(piece), piece.double().mean(0), piece.double().var(0))
    everything = torch.cat(pieces).double()
    torch.testing.assert_close(tally.mean, everything.mean(0))
    torch.testing.assert_close(tally.squares / (tally.count - 1), everything.var(0))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.BatchNorm1d, (7, 3)), (nn.BatchNorm2d, (7, 3, 4, 4)), (nn.BatchNorm3d, (7, 3, 2, 2, 2))]
)
def test_uneven_batches_move_the_statistics_once_as_on_one_device(layer, shape, momentum):
    bare = layer(3, momentum=momentum)
    pipe = Pipe(nn.Sequential(copy.deepcopy(bare)), [1], devices=["cpu"], chunks=3, deferred_batch_norm=True)
    for _ in range(4):
        x = torch.randn(shape) * 5 + 100
        pipe(x)
        bare(x)
    torch.testing.assert_close(pipe[0].state_dict(), bare.state_dict())


def test_the_layer_stays_the_same_object_of_the_same_kind():
    bare = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2)))
    norm, keys = bare[1][0], list(bare.state_dict())
    defer_batch_norm(bare)
    assert bare[1][0] is norm and isinstance(norm, nn.BatchNorm1d)
    assert list(bare.state_dict()) == keys


def test_outside_a_pipe_a_deferred_layer_is_a_plain_one():
    bare, x = nn.BatchNorm1d(3), torch.rand(5, 3)
    deferred = nn.Sequential(copy.deepcopy(bare))
    defer_batch_norm(deferred)
    torch.testing.assert_close(deferred(x), bare(x))
    torch.testing.assert_close(deferred[0].state_dict(), bare.state_dict())


def test_evaluation_uses_and_keeps_the_running_statistics():
    pipe = Pipe(nn.Sequential(nn.BatchNorm1d(3)), [1], devices=["cpu"], chunks=2, deferred_batch_norm=True)
    pipe(torch.rand(6, 3))
    before = copy.deepcopy(pipe.state_dict())
    pipe.eval()(torch.rand(6, 3) + 5)
    torch.testing.assert_close(pipe.state_dict(), before)


def test_a_layer_without_statistics_or_gradients_is_left_as_it_is():
    bare = nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False), nn.BatchNorm1d(2, affine=False))
    defer_batch_norm(bare)
    assert type(bare[0]) is nn.BatchNorm1d
    Pipe(bare, [1, 1], devices=["cpu"] * 2, chunks=2, deferred_batch_norm=True)(torch.rand(4, 2))
    assert bare[1].num_batches_tracked == 1


def test_the_statistics_move_even_without_gradients():
    pipe = Pipe(nn.Sequential(nn.BatchNorm1d(2)), [1], devices=["cpu"], chunks=2, deferred_batch_norm=True)
    with torch.no_grad():
        pipe(torch.rand(4, 2))
    assert pipe[0].num_batches_tracked == 1


def test_a_pipe_of_one_stage_and_one_chunk_defers_as_well():
    bare, x = nn.BatchNorm1d(3), torch.rand(5, 3)
    pipe = Pipe(nn.Sequential(copy.deepcopy(bare)), [1], devices=["cpu"], deferred_batch_norm=True)
    torch.testing.assert_close(pipe(x), bare(x))
    torch.testing.assert_close(pipe[0].state_dict(), bare.state_dict())


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.norm(x) * 2 + 1)


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_a_layer_used_twice_moves_twice_a_batch(chunks, checkpoint):
    """Its second input depends on the micro-batch, so only the first use is that of the whole batch, exactly."""
    bare = Twice().double()
    model = nn.Sequential(copy.deepcopy(bare), nn.Identity())
    pipe = Pipe(model, [1, 1], devices=["cpu"] * 2, chunks=chunks, checkpoint=checkpoint, deferred_batch_norm=True)
    x = torch.rand(7, 3, dtype=torch.float64)
    expected = nn.BatchNorm1d(3).double()
    expected(x)
    expected(torch.cat([bare.norm(piece) * 2 + 1 for piece in x.tensor_split(chunks)]))
    pipe(x).sum().backward()
    assert model[0].norm.num_batches_tracked == 2
    torch.testing.assert_close(model[0].norm.state_dict(), expected.state_dict())
