"""DeferredBatchNorm under torchgpipe's name, in a pipeline and fed by hand."""

import copy

import pytest
import torch
from torch import nn

from thinpipe.torchgpipe import GPipe
from thinpipe.torchgpipe.batchnorm import DeferredBatchNorm

convert = DeferredBatchNorm.convert_deferred_batch_norm


def assert_same_statistics(norm, other):
    torch.testing.assert_close(norm.running_mean, other.running_mean)
    torch.testing.assert_close(norm.running_var, other.running_var)
    assert norm.num_batches_tracked == other.num_batches_tracked


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize(
    ("norm", "shape"),
    [(nn.BatchNorm1d, (3,)), (nn.BatchNorm1d, (3, 2)), (nn.BatchNorm2d, (3, 2, 2)), (nn.BatchNorm3d, (3, 2, 2, 2))],
)
def test_micro_batches_fed_by_hand_count_as_one_batch(norm, shape, momentum):
    plain = norm(3, momentum=momentum)
    deferred = convert(copy.deepcopy(plain), chunks=4)
    for _ in range(2):
        x = torch.randn(8, *shape) + 1
        plain(x)
        for micro_batch in x.chunk(4):
            before = deferred.num_batches_tracked.item()
            deferred(micro_batch)
        assert deferred.num_batches_tracked == before + 1
    assert_same_statistics(deferred, plain)
    torch.testing.assert_close(deferred.eval()(x), plain.eval()(x))


def test_a_container_is_converted_in_place_and_keeps_its_tensors():
    model = nn.Sequential(
        nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))
    )
    weight = model[1][0].weight
    assert convert(model, 2) is model
    assert isinstance(model[1][0], DeferredBatchNorm) and model[1][0].chunks == 2
    assert model[1][0].weight is weight
    assert type(model[1][1]) is nn.BatchNorm1d  # nothing to defer
    assert convert(model, 3)[1][0].chunks == 3


def test_one_may_be_made_from_scratch():
    norm = DeferredBatchNorm(3, 1e-4, None, False, 2)
    assert (norm.eps, norm.momentum, norm.weight, norm.chunks) == (1e-4, None, None, 2)
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        norm(torch.ones(3))


def test_a_pipeline_knows_better_than_the_count():
    """Three rows make three micro-batches, whatever the layer was told to expect."""
    plain = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(4, 1))
    pipe = GPipe(convert(copy.deepcopy(plain), chunks=7), [1, 1], devices=["cpu", "cpu"], chunks=4)
    x = torch.randn(3, 2, 4)
    plain(x)
    pipe(x).sum().backward()
    assert_same_statistics(pipe[0], plain[0])


def test_a_pipeline_forgets_what_was_left_half_fed_by_hand():
    plain = nn.Sequential(nn.BatchNorm1d(2))
    deferred = convert(copy.deepcopy(plain), chunks=2)
    deferred(torch.full((4, 2), 100.0))
    pipe = GPipe(deferred, [1], devices=["cpu"], chunks=2)
    x = torch.randn(4, 2)
    plain(x)
    pipe(x)
    assert_same_statistics(pipe[0], plain[0])
