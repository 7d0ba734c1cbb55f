"""Every codec errs by no more than its docstring states."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_support import TEMPERS, crossed, same_bits, tensor_of, tensors, ulps
from thinpipe import codec

TINY = 2.0**-126
"""The least step of a grid, about: what is below it may be rounded to it."""

exact = pytest.mark.parametrize("spec", ["none", "none|zstd", "topk:1", "downsample:1", "ef(none)"])
bounded = settings(deadline=None, max_examples=60)


def errors(spec, x):
    return (crossed(spec, x).double() - x.double()).abs()


@exact
@bounded
@given(x=tensors())
def test_codecs_that_promise_exactness_are_exact(spec, x):
    y = crossed(spec, x)
    assert torch.equal(y, x)
    assert spec != "none" or same_bits(y, x)


@pytest.mark.parametrize(("spec", "target"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
@bounded
@given(x=tensors(tempers=[temper for temper in TEMPERS if temper != "huge"]))
def test_casts_round_as_torch_does(spec, target, x):
    assert same_bits(crossed(spec, x), x.to(target).to(x.dtype))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8, 11, 16])
@pytest.mark.parametrize("option", ["", ",zero", ",sr", ",zero,sr"])
@settings(deadline=None, max_examples=25)
@given(x=tensors())
def test_uniform_errs_by_half_a_step_and_stochastic_rounding_by_one(bits, option, x):
    if not x.numel() or ("sr" in option and bits > 8):
        return
    low, high = x.double().min().item(), x.double().max().item()
    if "zero" in option:
        low, high = min(low, 0), max(high, 0)
    step = max((high / 2 - low / 2) / (2**bits - 1) * 2, TINY * (high > low))
    # Moving the grid onto 0 may leave the ends half a step outside it, and stochastic rounding takes a whole one.
    steps = 0.5 + 0.5 * ("sr" in option) + 0.5 * ("zero" in option)
    assert errors(f"uniform:{bits}{option}", x).max() <= step * steps * (1 + 2**-16) + 4 * ulps(x)


@pytest.mark.parametrize("bits", [1, 3, 8, 16])
@settings(deadline=None, max_examples=25)
@given(x=tensors())
def test_a_zero_on_the_grid_stays_zero(bits, x):
    x = torch.cat([x.flatten(), x.new_zeros(1)])
    assert crossed(f"uniform:{bits},zero", x)[-1] == 0


@pytest.mark.parametrize(("q", "s"), [(3, 1), (4, 2), (6, 2), (9, 3), (12, 4), (1, 8), (15, 1)])
@settings(deadline=None, max_examples=25)
@given(x=tensors())
def test_sort_errs_by_half_a_step_of_the_values_bucket(q, s, x):
    if not x.numel():
        return
    x = x.flatten()
    order = x.argsort()
    error = errors(f"sort:{q}+{s}", x)[order]
    ranked = x.double()[order]
    for bucket, bucket_error in zip(ranked.tensor_split(2**s), error.tensor_split(2**s), strict=True):
        if bucket.numel():
            spread = (bucket[-1] / 2 - bucket[0] / 2) * 2
            step = max(spread / (2**q - 1), TINY * (spread > 0))
            assert bucket_error.max() <= step / 2 * (1 + 2**-16) + 4 * ulps(x)


@pytest.mark.parametrize("bits", [1, 2, 4, 5, 8, 12, 16])
@pytest.mark.parametrize("group", [2, 7, 128])
@pytest.mark.parametrize("option", ["", ",sr"])
@settings(deadline=None, max_examples=15)
@given(x=tensors())
def test_block_errs_by_half_a_step_of_the_block(bits, group, option, x):
    if not x.numel() or ("sr" in option and bits > 8):
        return
    x = x.flatten()
    error = errors(f"block:{bits}/{group}{option}", x)
    for block, block_error in zip(x.double().split(group), error.split(group), strict=True):
        low, high = block.min(), block.max()
        step = max((high - low) / (2**bits - 1 - 1 / 16), block.abs().max() / 2040) * (1 + 2**-7)
        step = max(step, TINY * bool(block.any()))
        assert block_error.max() <= step * (1 if option else 0.5) * (1 + 2**-10) + 2 * ulps(block.to(x.dtype)) + 2**-149


@pytest.mark.parametrize("group", [2, 10, 64])
@bounded
@given(x=tensors())
def test_nf_errs_by_half_the_widest_gap_of_its_levels(group, x):
    if not x.numel():
        return
    x = x.flatten()
    for block, block_error in zip(x.split(group), errors(f"nf:4/{group}", x).split(group), strict=True):
        peak = max(block.double().abs().max().item(), TINY)
        assert block_error.max() <= peak * (1 + 2**-7) * 0.1520 + 2 * ulps(block)


@pytest.mark.parametrize("bits", [1, 4, 8])
@bounded
@given(x=tensors())
def test_kmeans_stays_between_the_least_and_the_greatest_value(bits, x):
    y = crossed(f"kmeans:{bits}", x)
    if x.numel():
        assert x.float().min() <= y.float().min()
        assert y.float().max() <= x.float().max()


@pytest.mark.parametrize("bits", [2, 4, 6, 8])
@pytest.mark.parametrize("temper", ["gaussian", "relu", "ties", "odd one out"])
@settings(deadline=None, max_examples=5)
@given(data=st.data())
def test_kmeans_errs_no_more_than_the_even_grid_of_as_many_levels(bits, temper, data):
    x = data.draw(tensors(dtypes=[torch.float32], tempers=[temper], shapes=st.just((4000,))))
    ours, even = (errors(spec, x).square().sum() for spec in (f"kmeans:{bits}", f"uniform:{bits}"))
    assert ours <= even + 1e-9


@pytest.mark.parametrize("spec", ["topk:0.1", "topk:0.5", "topk:0.37,own", "topk:0.001"])
@bounded
@given(x=tensors())
def test_topk_is_exact_where_it_keeps_and_zero_elsewhere(spec, x):
    y = crossed(spec, x)
    if not x.numel():
        return
    count = codec(spec).coder.count(x.numel())
    rank = x.abs().flatten().argsort(descending=True, stable=True)
    kept = torch.zeros(x.numel(), dtype=torch.bool)
    kept[rank[:count]] = True
    assert same_bits(y.flatten()[kept], x.flatten()[kept])
    assert not y.flatten()[~kept].any()


@pytest.mark.parametrize(("bits", "distortion"), [(1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497), (5, 0.002499)])
@pytest.mark.parametrize("temper", ["gaussian", "log-normal"])
def test_a_rotated_block_errs_as_little_as_a_gaussian_can(bits, distortion, temper):
    """Lloyd and Max's distortion is the least for levels that all blocks share; blocks of outliers reach it too."""
    x = torch.randn(128 * 400)
    if temper == "log-normal":
        x = x.exp() * torch.sign(torch.randn_like(x))
    loss = errors(f"had:{bits}", x).square().view(-1, 128).sum(1) / x.double().square().view(-1, 128).sum(1)
    assert 0.75 * distortion < loss.mean() < 1.03 * distortion, "a lucky block's own grid may err less still"
    even = errors(f"uniform:{bits}", x).square().sum() / x.double().square().sum()
    assert loss.mean() < even


# Not "huge": a grid that ends above the greatest float is cut off there, which errs less than was foreseen.
@pytest.mark.parametrize("temper", [temper for temper in TEMPERS if temper != "huge"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_block_that_may_be_rotated_errs_no_more_than_one_that_may_not(bits, temper):
    x = tensor_of(temper, (128 * 40,))
    ours, even = (errors(f"{name}:{bits}/128", x).square().view(-1, 128).sum(1) for name in ("had", "block"))
    assert (ours <= even * (1 + 1e-3) + 1e-60).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_block_after_a_relu_is_not_rotated_where_that_errs_more(bits):
    x = torch.randn(256 * 50).relu().clamp(max=1)
    step = 1 / (2**bits - 1 - 1 / 16)
    assert errors(f"had:{bits}", x).max() <= step / 2 * (1 + 2**-6)
    assert not crossed(f"had:{bits}", x)[x == 0].any()
