"""Fitted bottlenecks lose no more of a model's activations than they must."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from bottleneck.models import TEXTS, batch, chained, cut, example, images
from thinpipe.bottleneck import Bottleneck, BottleneckError, explained, fit, insert
from thinpipe.bottleneck.moments import Moments


def fitted(text, x, pieces=1):
    """Fits one bottleneck to a tensor that crosses a cut; returns its report and what arrives."""
    stages = insert([nn.Identity(), nn.Identity()], {0: text}, example=x[:1])
    (report,) = fit(stages, list(x.tensor_split(pieces)))
    return report, chained(stages)(x).detach()


def correlated(*shape, seed=0):
    """Draws rows whose elements have much in common, and means of their own."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.Size(shape[1:]).numel()
    mixing = torch.randn(size, size, generator=generator, dtype=torch.float64) * 0.8 ** torch.arange(size)
    rows = torch.randn(shape[0], size, generator=generator, dtype=torch.float64) @ mixing.T
    return (rows + torch.randn(size, generator=generator, dtype=torch.float64)).reshape(shape)


def truncated(vectors, rank):
    """The squares that the best approximation of a rank loses, by singular values."""
    return float(torch.linalg.svdvals(vectors)[rank:].square().sum())


def patches(x, edge):
    """Cuts maps in patches that do not overlap; another way than the library's."""
    return functional.unfold(x, edge, stride=edge).transpose(1, 2).flatten(0, 1)


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_over_features_no_pair_of_matrices_loses_less(rank):
    x = correlated(40, 5, 9)
    report, arrived = fitted(f"linear:{rank}", x, pieces=3)
    vectors = x.flatten(0, 1)
    best = truncated(vectors - vectors.mean(0), rank)
    assert float((x - arrived).square().sum()) == pytest.approx(best, rel=1e-9)
    assert report.explained == pytest.approx(1 - best / float((vectors - vectors.mean(0)).square().sum()), rel=1e-9)
    assert report.rows == 40


def test_over_a_sequence_no_pair_of_matrices_loses_less():
    x = correlated(40, 7, 4)
    _, arrived = fitted("linear:s2", x, pieces=2)
    vectors = x.transpose(1, 2).flatten(0, 1)
    assert float((x - arrived).square().sum()) == pytest.approx(truncated(vectors - vectors.mean(0), 2), rel=1e-9)


@pytest.mark.parametrize(("text", "edge", "rank"), [("conv:3", 1, 3), ("conv:5k2s2", 2, 5), ("conv:7k3s3", 3, 7)])
def test_over_patches_no_convolution_with_its_transpose_loses_less(text, edge, rank):
    x = correlated(30, 4, 6, 6)
    _, arrived = fitted(text, x, pieces=4)
    centred = x - x.mean((0, 2, 3), keepdim=True)
    assert float((x - arrived).square().sum()) == pytest.approx(truncated(patches(centred, edge), rank), rel=1e-9)


@pytest.mark.parametrize(("one", "two"), [("conv:3k2s2", "conv:6k2s2+3"), ("conv:2", "conv:3+2")])
def test_two_sets_do_what_one_of_the_composed_shape_does(one, two):
    x = correlated(30, 4, 6, 6)
    x -= x.mean(0)
    torch.testing.assert_close(fitted(two, x)[1], fitted(one, x)[1])


def test_linear_sets_over_both_dimensions_are_fitted_one_after_the_other():
    x = correlated(40, 6, 8)
    full, both = fitted("linear:8+s6", x)[0], fitted("linear:4+s3", x)[0]
    assert full.explained == pytest.approx(1) and 0.4 < both.explained < 1


@pytest.mark.parametrize("text", ["conv:3k3s3", "conv:3k3s2", "conv:3k2s3", "linear:3"])
def test_fitted_weights_beat_those_of_any_data(text):
    """Also where kernels overlap, or leave gaps: there are better ones then, for a warm-up to find."""
    channels = correlated(60 * 25, 6).reshape(60, 5, 5, 6)
    x = functional.interpolate(channels.permute(0, 3, 1, 2), scale_factor=2, mode="bilinear")
    x = x.flatten(2).transpose(1, 2) if text.startswith("linear") else x
    stages = insert([nn.Identity(), nn.Identity()], {0: text}, example=x[:1])
    (before,) = explained(stages, [x])
    (after,) = fit(stages, [x])
    assert after.explained > before.explained + 0.05


def test_with_a_rank_that_decays_the_last_rows_matter_least():
    x = correlated(80, 8)
    stages = insert([nn.Identity(), nn.Identity()], {0: "linear:8,decay=0.5@1..1"}, example=x[:1])
    (report,) = fit(stages, [x])
    assert report.explained == pytest.approx(1)
    spread = stages[0](x).var(0)
    assert (spread.diff() < 0).all()


def test_a_network_barely_changes_at_full_rank_and_is_told_how_much_arrives():
    model = images().eval()
    x, _ = batch(40)
    expected = model(x)
    stages = insert(cut(copy.deepcopy(model)), "conv:4/conv:8", example=example())
    reports = fit(stages, [x[:25], x[25:]])
    assert [report.cut for report in reports] == [0, 1]
    assert [report.explained for report in reports] == pytest.approx([1, 1])
    assert str(reports[0]) == "cut 0: 100.00% of the variance arrives (40 rows)"
    torch.testing.assert_close(chained(stages)(x), expected)


def test_the_model_is_left_as_it_was():
    model = images().train()
    model.get_submodule("relu").eval()
    before = copy.deepcopy(model.state_dict())
    stages = insert(cut(model), TEXTS, example=example())
    draws = torch.get_rng_state()
    fit(stages, iter([batch(9)[0]]))
    assert torch.equal(torch.get_rng_state(), draws)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    modes = {name: module.training for name, module in model.named_children()}
    assert modes == {**dict.fromkeys(modes, True), "relu": False}


def test_moments_do_not_depend_on_the_pieces():
    x = correlated(50, 6)
    whole, pieces = (Moments(6, x.device) for _ in range(2))
    whole.add(x)
    for piece in x.split(7):
        pieces.add(piece)
    centre = torch.arange(6.0, dtype=torch.float64)
    torch.testing.assert_close(whole.about(centre), pieces.about(centre))
    torch.testing.assert_close(whole.about(centre), (x - centre).T @ (x - centre) / 50)


def test_one_half_alone_cannot_be_fitted():
    pair = Bottleneck("linear:2", (6,))
    with pytest.raises(BottleneckError, match="1 senders and 0 receivers"):
        fit([pair.on_sender(nn.Linear(6, 6))], [torch.zeros(3, 6)])


def test_without_batches_there_is_nothing_to_fit_to():
    stages = insert(cut(images()), TEXTS, example=example())
    with pytest.raises(BottleneckError, match="no batches"):
        fit(stages, [])
