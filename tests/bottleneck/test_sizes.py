"""What comes out of a bottleneck has the size of what went in, whatever the kernel leaves over."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from thinpipe.bottleneck import Bottleneck, BottleneckError


def through(pair, x):
    """Crosses with halves that were made apart, as two machines would."""
    small = pair.sender()(x)
    return small, Bottleneck(pair.text, pair.shape, seed=pair.seed, place=pair.place, dtype=pair.dtype).receiver()(
        small
    )


@given(
    height=st.integers(1, 23),
    width=st.integers(1, 23),
    kernel=st.integers(1, 6),
    stride=st.integers(1, 6),
    sets=st.integers(1, 2),
    rows=st.integers(0, 3),
)
def test_maps_of_any_size_are_restored(height, width, kernel, stride, sets, rows):
    assume(kernel <= min(height, width))
    text = f"conv:3k{kernel}s{stride}" + "+2" * (sets - 1)
    pair = Bottleneck(text, (3, height, width))
    x = torch.randn(rows, 3, height, width)
    small, large = through(pair, x)
    assert small.shape == (rows, *pair.wire) and large.shape == x.shape
    # As a convolution without padding counts, which is how the documents count.
    assert pair.wire[1:] == ((height - kernel) // stride + 1, (width - kernel) // stride + 1)


@given(tokens=st.integers(1, 9), features=st.integers(1, 9), data=st.data())
def test_texts_of_any_size_are_restored(tokens, features, data):
    rank, length = data.draw(st.integers(1, features)), data.draw(st.integers(1, tokens))
    x = torch.randn(2, tokens, features)
    for text, wire in (
        (f"linear:{rank}", (tokens, rank)),
        (f"linear:s{length}", (length, features)),
        (f"linear:{rank}+s{length}", (length, rank)),
    ):
        small, large = through(Bottleneck(text, (tokens, features)), x)
        assert small.shape == (2, *wire) and large.shape == x.shape


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("conv:4", (4, 5, 6)),
        ("conv:16k2s2", (4, 6, 8)),
        ("conv:36k3s3", (4, 6, 9)),
        ("linear:7", (7,)),
        ("linear:7", (3, 7)),
        ("linear:s3", (3, 7)),
        ("linear:7+s3", (3, 7)),
    ],
)
def test_at_full_rank_nothing_is_lost_from_the_beginning(text, shape):
    x = torch.randn(5, *shape, dtype=torch.float64)
    _, large = through(Bottleneck(text, shape, dtype=torch.float64), x)
    torch.testing.assert_close(large, x)


def test_a_linear_bottleneck_of_full_rank_begins_as_the_identity():
    x = torch.randn(5, 3, 7)
    assert torch.equal(Bottleneck("linear:7", (3, 7)).sender()(x), x)


def test_with_a_pixel_for_each_channel_a_patch_becomes_its_mean():
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    _, large = through(Bottleneck("conv:4k3s3", (4, 6, 6), dtype=torch.float64), x)
    means = torch.nn.functional.avg_pool2d(x, 3)
    torch.testing.assert_close(large, means.repeat_interleave(3, 2).repeat_interleave(3, 3))


def test_the_row_that_no_patch_reaches_is_that_beside_it():
    """The prototype gave maps of 111 x 111 back for those of 112 x 112."""
    _, large = through(Bottleneck("conv:20k3s3", (32, 112, 112)), torch.randn(1, 32, 112, 112))
    assert large.shape == (1, 32, 112, 112)
    assert torch.equal(large[:, :, 111], large[:, :, 110]) and torch.equal(large[..., 111], large[..., 110])


def test_rows_of_fewer_tokens_pass_where_only_features_are_made_small():
    pair = Bottleneck("linear:3", (9, 7))
    assert through(pair, torch.randn(2, 4, 7))[1].shape == (2, 4, 7)
    assert through(Bottleneck("conv:3", (4, 9, 9)), torch.randn(2, 4, 5, 6))[1].shape == (2, 4, 5, 6)


@pytest.mark.parametrize(
    ("text", "shape", "other", "says"),
    [
        ("conv:3k2s2", (4, 8, 8), (4, 9, 8), "the sender of cut 0 takes rows of 4 x 8 x 8, got 4 x 9 x 8"),
        ("conv:3", (4, 8, 8), (5, 8, 8), "takes rows of 4 x any x any, got 5 x 8 x 8"),
        ("linear:s3", (8, 6), (7, 6), "takes rows of 8 x any, got 7 x 6"),
        ("linear:3", (8, 6), (8, 5), "takes rows of any x 6, got 8 x 5"),
        ("linear:3", (8, 6), (6,), "takes rows of any x 6, got 6"),
    ],
)
def test_rows_of_another_size_are_refused_by_the_sender(text, shape, other, says):
    with pytest.raises(BottleneckError, match=says):
        Bottleneck(text, shape).sender()(torch.zeros(2, *other))


def test_a_receiver_refuses_what_another_bottleneck_sent():
    small = Bottleneck("conv:3k2s2", (4, 8, 8)).sender()(torch.zeros(2, 4, 8, 8))
    with pytest.raises(BottleneckError, match="the receiver of cut 0 takes rows of 3 x 2 x 2, got 3 x 4 x 4"):
        Bottleneck("conv:3k4s4", (4, 8, 8)).receiver()(small)


@pytest.mark.parametrize(
    ("text", "shape", "says"),
    [
        ("conv:3k9s9", (4, 8, 20), "does not fit maps of 8 x 20; use a kernel of at most 8"),
        ("conv:5", (4, 8, 8), "makes 5 numbers of the 4 of a patch of 4 channels"),
        ("conv:17k2s2", (4, 8, 8), "use at most 16"),
        ("conv:8k2s2+9", (4, 8, 8), "makes 9 numbers of the 8"),
        ("conv:3", (12, 7), "needs rows of channels x height x width, got 12 x 7; use linear"),
        ("linear:3", (4, 8, 8), "got 4 x 8 x 8; use conv"),
        ("linear:9", (12, 7), "no less than the 7 features"),
        ("linear:s13", (12, 7), "no less than the 12 tokens"),
        ("linear:s3", (7,), "needs rows of tokens x features, got 7; use linear:3"),
        ("none", (7,), "'none' is no bottleneck"),
    ],
)
def test_a_bottleneck_that_does_not_fit_is_refused_when_it_is_made(text, shape, says):
    with pytest.raises(BottleneckError, match=says):
        Bottleneck(text, shape)


@pytest.mark.parametrize(("text", "shape"), [("conv:7k2s2+3", (5, 6, 6)), ("linear:3+s2", (4, 7))])
def test_both_sides_make_the_same_halves_of_text_shape_and_seed_alone(text, shape):
    def weights(seed, cut=0):
        torch.manual_seed(torch.initial_seed() + 1)  # what else is drawn in a process is no matter
        pair = Bottleneck(text, shape, seed=seed, cut=cut)
        return [weight for half in (pair.sender(), pair.receiver()) for weight in half.state_dict().values()]

    before = torch.get_rng_state()
    Bottleneck(text, shape).sender()
    assert torch.equal(torch.get_rng_state(), before), "nor is anything drawn from it"
    same = [torch.equal(a, b) for a, b in zip(weights(3), weights(3), strict=True)]
    assert all(same)
    assert not torch.equal(weights(3)[0], weights(4)[0]) and not torch.equal(weights(3)[0], weights(3, cut=1)[0])
