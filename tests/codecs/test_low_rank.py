"""``power`` and ``svd``: exact at full rank, near the best below it, warm where it has seen the like."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from codec_support import TEMPERS, crossed, tensors
from thinpipe import codec, decode
from thinpipe.codecs.orthonormal import column_by_column, orthonormal

# Log-normal values of sigma 3 span more than float32 resolves relative to their greatest.
ordinary = [temper for temper in TEMPERS if temper not in ("huge", "log-normal", "subnormal")]


def loss(x, y):
    return ((x.double() - y.double()).square().sum() / x.double().square().sum()).item()


def best_loss(x, rank):
    singular = torch.linalg.svdvals(x.double())
    return (singular[..., rank:].square().sum() / singular.square().sum()).item()


def decaying(*shape):
    """Matrices whose singular values decay, as those of activations do."""
    u, s, v = torch.linalg.svd(torch.randn(*shape), full_matrices=False)
    return (u * (torch.arange(1, s.shape[-1] + 1) ** -0.8)) @ v


@pytest.mark.parametrize("spec", ["power:4096", "svd:4096"])
@settings(deadline=None, max_examples=40)
@given(x=tensors(tempers=ordinary))
def test_full_rank_is_exact_to_rounding(spec, x):
    y = crossed(spec, x)
    if x.numel():
        # In float64 the decomposition itself loses some digits on long rows of equal values.
        rounding = 1e-10 if x.dtype == torch.float64 else 200 * torch.finfo(torch.float32).eps
        slack = rounding + torch.finfo(x.dtype).eps
        assert (y.double() - x.double()).abs().max() <= slack * x.double().abs().max()


@pytest.mark.parametrize("shape", [(4, 12, 20), (2, 3, 40, 64), (64, 40), (3, 50, 50)], ids=str)
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_svd_is_near_the_best_of_its_rank(shape, rank):
    for x in (torch.randn(*shape), decaying(*shape)):
        assert loss(x, crossed(f"svd:{rank}", x)) <= 1.05 * best_loss(x, rank) + 1e-6


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e30])
@pytest.mark.parametrize("spec", ["power:3", "svd:3"])
def test_the_scale_of_a_matrix_does_not_matter(spec, scale):
    """Power iteration squares values: those of 1e-30 vanished in it, and those of 1e30 became infinities."""
    x = decaying(2, 30, 40)
    assert loss(x * scale, crossed(spec, x * scale)) == pytest.approx(loss(x, crossed(spec, x)), rel=1e-3)


def test_power_gets_better_with_every_matrix_that_is_alike():
    x = decaying(4, 32, 100)
    a = codec("power:3")
    losses = [loss(x, a.decode(a.encode(x))) for _ in range(12)]
    assert losses[-1] < losses[0]
    assert losses[-1] <= 1.02 * best_loss(x, 3)
    assert losses[0] <= 1.3 * best_loss(x, 3)


def test_more_passes_come_nearer_to_the_best_where_tensors_are_not_alike():
    """One pass from the factor of another tensor is far from the best; the document's power iteration has three."""
    batches = [decaying(4, 32, 100) for _ in range(4)]
    best = sum(best_loss(x, 3) for x in batches)
    errors = []
    for spec in ("power:3", "power:3/1", "power:3/3", "power:3/20"):
        a = codec(spec)
        errors.append(sum(loss(x, a.decode(a.encode(x))) for x in batches))
    one, always_one, three, twenty = errors
    assert always_one > one > 1.05 * three, (
        "without a number the first tensor has more passes than one, others have not"
    )
    assert three > twenty
    assert twenty == pytest.approx(best, rel=1e-3)


def test_a_packet_does_not_depend_on_passes_where_it_is_read():
    x = decaying(4, 32, 100)
    three, one = codec("power:3/3").encode(x), codec("power:3").encode(x)
    assert [section.numel() for section in three.sections] == [section.numel() for section in one.sections]
    told = replace(three, spec="power:3")
    assert torch.equal(codec("power:3").decode(told), codec("power:3/3").decode(three))
    assert torch.equal(decode(three), decode(told))


def test_power_takes_any_size_of_batch_after_any_other():
    a = codec("power:3")
    for batch in (8, 5, 1, 16, 8):
        x = torch.randn(batch, 16, 4, 6)
        assert a.decode(a.encode(x)).shape == x.shape
    whole = torch.randn(1, 3, 40).expand(4, 3, 40)
    b = codec("power:1")
    b.encode(whole)
    warm = loss(whole[:3], b.decode(b.encode(whole[:3])))
    cold = loss(whole[:3], codec("power:1").decode(codec("power:1").encode(whole[:3])))
    assert warm <= cold + 1e-6


def test_power_takes_another_shape_after_one():
    a = codec("power:3")
    for shape in ((4, 8, 9), (4, 9, 8), (4, 2, 9), (20,), (), (4, 8, 9)):
        x = torch.randn(shape)
        y = a.decode(a.encode(x))
        assert torch.isfinite(y).all()
        assert loss(x, y) <= 1 + 1e-5


@pytest.mark.parametrize("spec", ["power:3", "svd:3", "power:3|block:8", "svd:3|uniform:8"])
def test_a_matrix_of_zeros_stays_one_and_does_no_harm(spec):
    a = codec(spec)
    x = torch.randn(2, 10, 12)
    for tensor in (torch.zeros(2, 10, 12), x, torch.zeros(2, 10, 12), x, x, x):
        y = a.decode(a.encode(tensor))
        assert torch.isfinite(y).all()
        assert tensor.any() or not y.any()
    assert loss(x, y) <= 1.3 * best_loss(x, 3)


@pytest.mark.parametrize("spec", ["power:5", "svd:5"])
@pytest.mark.parametrize("true_rank", [1, 2, 4])
def test_a_matrix_of_lower_rank_than_asked_is_exact(spec, true_rank):
    x = torch.randn(3, 20, true_rank) @ torch.randn(3, true_rank, 30)
    a = codec(spec)
    for _ in range(3):
        assert loss(x, a.decode(a.encode(x))) < 1e-9


def test_power_sees_channels_by_positions_and_svd_every_channel():
    assert codec("power:3").coder.matrices(torch.Size([8, 32, 14, 14])) == (8, 32, 196)
    assert codec("power:3").coder.matrices(torch.Size([8, 128, 768])) == (8, 128, 768)
    assert codec("svd:3").coder.matrices(torch.Size([8, 32, 14, 14])) == (256, 14, 14)
    header = codec("none").nbytes([8, 32, 14, 14]) - 8 * 32 * 14 * 14 * 4 - len("none")
    assert codec("power:3").nbytes([8, 32, 14, 14]) == header + 8 + len("power:3") + 4 * 8 * 3 * (32 + 196)


@pytest.mark.parametrize("shape", [(5, 9, 3), (1, 4, 4), (7, 40, 1), (2, 3, 50, 6), (0, 5, 2)], ids=str)
def test_columns_are_made_orthonormal_in_all_matrices_at_once(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(column_by_column(x), orthonormal(x))


@pytest.mark.parametrize("kind", ["zeros", "ones", "nearly ones", "one of them"])
def test_columns_that_depend_on_others_are_made_orthonormal_too(kind):
    """A direction that was lost would stay lost: the next tensor begins with what this one found."""
    noise = torch.randn(4, 12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = {
        "zeros": torch.zeros_like(noise),
        "ones": torch.ones_like(noise),
        "nearly ones": 1 + 1e-14 * noise,
        "one of them": torch.cat([noise[..., :3], noise[..., 1:2], noise[..., 3:4]], -1),
    }[kind]
    found = column_by_column(x)
    torch.testing.assert_close(found.mT @ found, torch.eye(5, dtype=torch.float64).expand(4, 5, 5))
    if kind == "one of them":
        kept = found @ (found.mT @ x)
        torch.testing.assert_close(kept, x)
