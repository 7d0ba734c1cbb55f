"""Buckets of sort quantization: nearly equal populations by a sample, exactly equal ones on request."""

import pytest
import torch

from codec_support import crossed, tensor_of
from thinpipe import codec
from thinpipe.kernels.planes import unpack

COUNT = 300_007
"""More than are looked at one by one, and no multiple of anything."""


def populations(spec, x, value_bits, split_bits):
    """Counts the values of each bucket, from the codes that travel."""
    codes = unpack(codec(spec).encode(x).sections[1], x.numel(), value_bits + split_bits)
    return torch.bincount(codes >> value_bits, minlength=2**split_bits)


def wavy(count):
    """A pattern that a sample at equal distances would see a part of only."""
    places = torch.arange(count)
    return torch.where(places % 4 == 0, 5.0, 0.0) + torch.randn(count, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("split_bits", [1, 2, 4])
@pytest.mark.parametrize("kind", ["gaussian", "log-normal", "wavy"])
def test_a_sample_makes_populations_equal_within_a_hundredth_of_all_values(kind, split_bits):
    x = wavy(COUNT) if kind == "wavy" else tensor_of(kind, (COUNT,))
    found = populations(f"sort:4+{split_bits}", x, 4, split_bits)
    assert (found / COUNT - 2.0**-split_bits).abs().max() < 0.01


def test_populations_are_exactly_equal_on_request_and_in_small_tensors():
    x = torch.randn(COUNT)
    assert populations("sort:4+2,exact", x, 4, 2).tolist() == [75_002, 75_002, 75_002, 75_001]
    small = x[:65_536]
    assert populations("sort:4+2", small, 4, 2).tolist() == [16_384] * 4
    assert torch.equal(crossed("sort:4+2", small), crossed("sort:4+2,exact", small))


@pytest.mark.parametrize("kind", ["gaussian", "relu", "ties", "constant", "odd one out", "huge"])
def test_a_sampled_bucket_still_reaches_from_its_least_to_its_greatest_value(kind):
    x = tensor_of(kind, (COUNT,))
    y = crossed("sort:12+2", x)
    assert y.min() == x.min()
    torch.testing.assert_close(y.max(), x.max(), rtol=1e-6, atol=0)
    torch.testing.assert_close(y, x, rtol=0, atol=2 * float(x.max() / 8191 - x.min() / 8191) + 1e-45)


def test_values_that_no_sample_meets_are_not_cut_off():
    x = torch.randn(COUNT)
    x[[11, 77_777]] = torch.tensor([1e6, -1e6])
    y = crossed("sort:12+2", x)
    torch.testing.assert_close(y[[11, 77_777]], x[[11, 77_777]])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_value_that_is_not_finite_spoils_a_sampled_tensor_too(value):
    x = torch.randn(COUNT)
    x[123_456] = value
    assert crossed("sort:6+2", x).isnan().all()
