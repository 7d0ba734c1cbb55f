"""How ``wave`` cuts a tensor: into as few equal tiles as will do; and at once, whatever size a packet claims."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limits import limited
from thinpipe import codec
from thinpipe.codecs.places import Places


def searched(size, most):
    """What the size of a part must be, found by trying one number of parts after the other."""
    fewest = max(1, -(-size // most))
    parts = next((n for n in range(fewest, 2 * fewest) if size % n == 0), fewest)
    return max(1, -(-size // parts))


def searched_fold(places, few):
    """How many channels must be taken for one, found likewise."""
    need = -(-int(few) // max(1, places.samples * places.height * places.width))
    size = places.tall * places.wide
    folds = range(need, 4 * need)
    return next((n for n in folds if places.channels % n == 0 and places.channels // n * size >= 16), 1)


@pytest.mark.parametrize("side", [2, 3, 7, 8, 16, 31, 32])
def test_tiles_are_those_that_a_search_finds(side):
    for size in range(3000):
        image = Places.of(torch.Size([1, 1, size, size]), side, 1)
        assert (image.tall, image.wide) == (searched(size, side),) * 2
        assert Places.of(torch.Size([1, size, 4]), side, 1).wide == searched(size, side)
        assert Places.of(torch.Size([size]), side, 1).wide == searched(size, side * side)


@settings(max_examples=500)
@given(
    shape=st.lists(st.integers(0, 40) | st.integers(0, 5000), max_size=5),
    side=st.integers(2, 32),
    bits=st.sampled_from([1 / 128, 0.1, 0.6, 1, 2, 4, 8]),
)
def test_channels_are_folded_as_a_search_finds(shape, side, bits):
    places = Places.of(torch.Size(shape), side, 128 / bits)
    assert places.fold == searched_fold(places, 128 / bits)


@pytest.mark.parametrize("prime", [1_000_003, 2**31 - 1, 1_000_000_000_039, 2**59 - 55])
@pytest.mark.parametrize("side", [2, 16, 32])
def test_a_size_without_divisors_is_cut_at_once(prime, side):
    for shape in ((prime,), (2, prime), (2, prime, 16), (2, 3, 16, prime), (2, 3, prime, 16), (1, prime, 1, 1)):
        with limited(size=None):
            places = Places.of(torch.Size(shape), side, 128 * 128)
        assert places.tall <= side and places.wide <= side * side
        assert places.rows * places.tall - places.height < places.rows
        assert places.columns * places.wide - places.width < places.columns


@pytest.mark.parametrize("shape", [(100_003,), (2, 10_007), (2, 10_007, 3), (1, 3, 1009, 7), (1, 1009, 3, 7)])
def test_a_tensor_with_a_large_prime_dimension_crosses(shape):
    x = torch.randn(shape)
    y = codec("wave:8").decode(codec("wave:8").encode(x))
    assert y.shape == x.shape
    assert float((y - x).norm() / x.norm()) < 0.05
