"""NaN and the infinities: they arrive as something not finite, and spoil no more than what shares their scale."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_support import DTYPES, FEEDBACK, SPECS, crossed, tensor_of
from thinpipe import codec
from thinpipe.kernels import REFERENCE, cpu_kernels, using

ODD = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=15)
@given(
    shape=st.sampled_from([(2, 3, 8, 9), (4, 30), (40, 5, 6), (300,)]),
    dtype=st.sampled_from(DTYPES),
    values=st.lists(st.sampled_from(ODD), min_size=1, max_size=2),
    share=st.sampled_from([0.005, 0.09, 0.11, 0.5, 0.99]),
    seed=st.integers(0, 99),
)
def test_what_is_not_finite_does_not_arrive_finite(spec, shape, dtype, values, share, seed):
    """Few of them or many: more than ``topk`` sends, too."""
    x = tensor_of("gaussian", shape, dtype, seed)
    places = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(seed))[: max(1, int(share * x.numel()))]
    x.view(-1)[places] = torch.tensor(values).repeat(x.numel())[: len(places)].to(dtype)
    y = crossed(spec, x)
    assert y.shape == x.shape
    assert not torch.isfinite(y)[~torch.isfinite(x)].any()


@pytest.mark.parametrize("spec", ["none", "fp16", "bf16", "topk:0.1"])
@pytest.mark.parametrize("value", ODD)
def test_codecs_without_a_scale_keep_it_as_it_is_and_where_it_is(spec, value):
    x = torch.randn(100)
    x[[3, 50]] = value
    y = crossed(spec, x)
    torch.testing.assert_close(y[[3, 50]], x[[3, 50]], equal_nan=True)
    assert torch.isfinite(y).sum() == 98


@pytest.mark.parametrize(("spec", "group"), [("block:4", 128), ("block:8/24,sr", 24), ("had:4", 128), ("nf:4", 64)])
@pytest.mark.parametrize("value", ODD)
def test_codecs_of_blocks_lose_one_block(spec, group, value):
    x = torch.randn(1000)
    clean = crossed(spec, x)
    x[500] = value
    y = crossed(spec, x)
    lost = torch.arange(1000) // group == 500 // group
    assert y[lost].isnan().all()
    assert torch.equal(y[~lost], clean[~lost])


@pytest.mark.parametrize("spec", ["uniform:8", "uniform:8,zero", "sort:6+2", "kmeans:4", "power:2", "svd:2"])
@pytest.mark.parametrize("value", ODD)
def test_codecs_of_one_scale_lose_the_tensor(spec, value):
    x = torch.randn(20, 30)
    x[3, 4] = value
    assert crossed(spec, x).isnan().all()


@pytest.mark.parametrize("spec", ["uniform:8,sr", "power:2", "power:2|block:4", "topk:0.2|uniform:4", *FEEDBACK])
@pytest.mark.parametrize("value", [*ODD, 3e38])
def test_a_codec_that_remembers_recovers_at_the_next_tensor(spec, value):
    """One overflowed step of mixed precision must not poison all that follow."""
    a = codec(spec)
    x = tensor_of("gaussian", (3, 8, 10))
    a.decode(a.encode(x))
    spoiled = x.clone()
    spoiled[1, 2] = value
    a.decode(a.encode(spoiled))
    for _ in range(3):
        y = a.decode(a.encode(x))
        assert torch.isfinite(y).all()
    if value != 3e38 and "topk" not in spec:
        assert torch.nn.functional.cosine_similarity(y.flatten(), x.flatten(), dim=0) > 0.4


@pytest.mark.parametrize("spec", SPECS)
def test_a_tensor_of_nothing_but_nan_is_no_error(spec):
    x = torch.full((2, 4, 5), math.nan)
    y = crossed(spec, x)
    assert y.isnan().all()


@pytest.mark.parametrize("spec", ["topk:0.1", "topk:0.1|uniform:8", "topk:0.1|zstd"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2])
def test_more_of_them_than_are_sent_lose_the_tensor(spec, dtype):
    """The rest arrived as 0, as if nothing had happened to them."""
    x = torch.linspace(-1, 1, 100).to(dtype)
    x[7:27] = torch.tensor(math.nan).to(dtype)
    assert not torch.isfinite(crossed(spec, x).float()).any()
    x[7:27] = 0
    assert torch.isfinite(crossed(spec, x).float()).all()


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("kernels", [REFERENCE, cpu_kernels()], ids=lambda kernels: kernels.name)
def test_a_gradient_that_is_not_finite_where_nothing_is_sent_is_lost(value, kernels):
    """``topk`` both ways sends the gradient of the chosen elements alone; of the others it arrived as 0."""
    x = torch.linspace(-1, 1, 100).view(4, 25)
    with using(kernels):
        there = codec("topk:0.1").encode(x)
        back = codec("topk:0.1").for_gradient_of(there)
        grad = torch.ones(4, 25)
        assert torch.equal(back.decode(back.encode(grad)), (codec("topk:0.1").decode(there) != 0).float())
        grad[2, 3] = value
        assert back.decode(back.encode(grad)).isnan().all()
        grad[2, 3], grad[0, 0] = 1, value  # one that is sent spoils nothing else
        assert torch.isfinite(back.decode(back.encode(grad))).sum() == 99


@pytest.mark.parametrize("spec", ["block:4", "had:4", "nf:4", "kmeans:4"])
def test_a_float64_beyond_float32_is_an_infinity_to_codecs_that_compute_in_float32(spec):
    x = torch.tensor([1.0, 1e300, 2.0], dtype=torch.float64)
    assert crossed(spec, x).isnan().all()
    torch.testing.assert_close(crossed("uniform:8", x), torch.tensor([1, 1e300, 1], dtype=torch.float64))


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_infinity_is_not_averaged_into_the_greatest_number(dtype, value):
    """Half precision had 65504 in its place."""
    x = torch.randn(1, 1, 8, 8).to(dtype)
    x[0, 0, 3, 4] = value
    assert not torch.isfinite(crossed("downsample:2", x)[0, 0, 3, 4])
