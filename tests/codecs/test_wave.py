"""``wave``: every bit goes where it takes most off the error, whichever channel and wave that is; both ends agree."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from thinpipe import Packet, codec
from thinpipe.codecs.groups import Groups
from thinpipe.codecs.laplace import GAINS, MOST_BITS
from thinpipe.codecs.octaves import LEAST, allotted, octaves_of, sigmas_of
from thinpipe.codecs.places import Places
from thinpipe.codecs.wave import _shared
from thinpipe.errors import SpecError


def maps(samples=8, channels=16, size=48, seed=0):
    """Draws maps as an early layer has them: neighbours are nearly alike, and channels are of many strengths."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.randn(samples, channels, size // 8, size // 8, generator=generator)
    strength = torch.logspace(0, -2, channels)[:, None, None]
    large = functional.interpolate(small, (size, size), mode="bicubic")
    return (large + 0.1 * torch.randn(large.shape, generator=generator)) * strength


def error(spec, x):
    a = codec(spec)
    return float((a.decode(a.encode(x)) - x).norm() / x.norm())


def bits(spec, x):
    return 8 * codec(spec).nbytes(x.shape) / x.numel()


def test_bits_go_to_the_channels_and_waves_that_need_them():
    x = maps()
    assert bits("wave:0.6", x) < 0.2 * bits("had:4", x)
    assert error("wave:0.6", x) < 0.6 * error("had:3", x)
    errors = [error(f"wave:{b}", x) for b in (0.02, 0.1, 0.3, 1, 2, 4)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 2e-2


def test_words_have_features_that_differ_and_gain_by_it():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 32, 96, generator=generator) * torch.logspace(0, -1, 96)
    assert error("wave:2", x) < 0.8 * error("had:2", x)
    assert bits("wave:2", x) < bits("had:2", x) + 0.2


def test_slow_waves_are_kept_before_quick_ones():
    """A gradient that is all noise: what a layer of weights makes of it is little but its slow waves."""
    x = torch.randn(32, 8, 64, 64, generator=torch.Generator().manual_seed(0))
    a = codec("wave:0.5")
    wrong = a.decode(a.encode(x)) - x
    slow = functional.avg_pool2d(wrong, 8).norm() / functional.avg_pool2d(x, 8).norm()
    assert slow < 0.3 < 0.6 < wrong.norm() / x.norm()


@pytest.mark.parametrize("spec", ["wave:0.1", "wave:0.6", "wave:2"])
def test_what_cancels_in_a_channel_of_an_image_nearly_cancels_in_what_is_decoded(spec):
    """The gradient of a bias is a sum over all places; errors that lean to one side would push it every step."""
    x = torch.randn(32, 8, 64, 64, generator=torch.Generator().manual_seed(0))
    a = codec(spec)
    wrong = a.decode(a.encode(x)) - x
    assert float(wrong.norm() / x.norm()) > 0.1
    assert float(wrong.sum((0, 2, 3)).norm()) < 0.4 * float(wrong.norm())  # the sum of errors that do not lean


def test_weak_places_of_an_image_have_as_many_bits_as_strong_ones():
    """With fewer, training lost by it: results/wave-on-its-way."""
    x = maps(samples=16, size=32)
    x[:8] -= x[:8].mean((0, 2, 3), keepdim=True)  # or weak places would be a mean away from themselves
    alone = error("wave:1", x[8:])
    x[:8] *= 100
    a = codec("wave:1")
    assert float((a.decode(a.encode(x))[8:] - x[8:]).norm() / x[8:].norm()) < 1.2 * alone


def test_places_that_have_next_to_nothing_are_given_next_to_nothing():
    x = torch.randn(64, 16, 32, generator=torch.Generator().manual_seed(0))
    x[8:] *= 1e-4
    a = codec("wave:0.5")
    assert float(a.decode(a.encode(x))[8:].norm()) < 2 * float(x[8:].norm())


def test_what_is_the_same_all_over_a_plane_comes_back_nearly_as_it_was():
    """The gradient of an average pool: each plane has one value."""
    x = torch.randn(64, 32, 1, 1, generator=torch.Generator().manual_seed(0)).expand(-1, -1, 7, 7).contiguous()
    assert error("wave:0.2", x) < 2e-2


@settings(deadline=None, max_examples=80)
@given(
    shape=st.lists(st.integers(1, 24), min_size=0, max_size=5),
    side=st.integers(2, 32),
    few=st.floats(1, 5000),
    seed=st.integers(0, 9),
)
def test_places_are_cut_and_joined_without_a_loss(shape, side, few, seed):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    places = Places.of(x.shape, side, few)
    tiles = places.cut(x)
    assert tiles.shape == (places.kinds, places.count, places.size)
    assert torch.equal(places.joined(tiles, x.dtype).view(x.shape), x)


def test_channels_are_taken_for_one_where_samples_are_few():
    assert Places.of(torch.Size([256, 64, 28, 28]), 16, 64).fold == 1
    assert Places.of(torch.Size([1, 4096]), 16, 64).fold == 64
    told = codec("wave:2").nbytes(torch.Size([1, 4096]))
    assert told < 1.4 * 4096 * 2 / 8


@settings(deadline=None, max_examples=100)
@given(
    octaves=st.lists(st.integers(LEAST, 127), min_size=1, max_size=60),
    strengths=st.lists(st.integers(LEAST, 0), min_size=1, max_size=8),
    weigh=st.booleans(),
    share=st.floats(0.01, 8),
)
def test_bits_are_shared_as_if_one_by_one(octaves, strengths, weigh, share):
    told, groups = (torch.tensor(numbers, dtype=torch.int32) for numbers in (octaves, strengths))
    weights = torch.arange(len(octaves), dtype=torch.int32) * (-37 if weigh else 0)
    waves = len(octaves) * len(strengths)
    total = min(max(1, round(share * waves)), MOST_BITS * waves)
    found = allotted(told, weights, groups, total)
    assert found.shape == (len(strengths), len(octaves))
    assert int(found.sum()) == total
    assert int(found.min()) >= 0
    assert int(found.max()) <= MOST_BITS
    gains = (64 * torch.log2(GAINS.double())).round().long()
    ranked = (16 * (told + groups[:, None]).long() + weights).view(-1, 1) + gains
    order = sorted(((-int(rank), wave) for wave, row in enumerate(ranked) for rank in row))
    expected = torch.bincount(torch.tensor([wave for _, wave in order[:total]]), minlength=waves)
    assert torch.equal(found.view(-1), expected)


def lines(count):
    """Groups the places of so many short lines."""
    return Groups.of(Places.of(torch.Size([count, 2, 16]), 2, 1))


@settings(deadline=None, max_examples=80)
@given(count=st.integers(1, 3000), seed=st.integers(0, 9))
def test_groups_have_every_place_and_the_strongest_first(count, seed):
    groups = lines(count)
    assert groups.number * groups.size <= count * 33 / 32
    assert groups.number == 1 or groups.size % 8 == 0
    scales = torch.randn(count, generator=torch.Generator().manual_seed(seed)).exp().bfloat16()
    order = groups.order(scales)
    assert sorted(order[:count].tolist()) == list(range(count))
    assert len(order) == groups.number * groups.size
    if groups.number > 1:
        assert scales[order].diff().max() <= 0
    strengths = groups.strengths(scales[order].float().square()).tolist()
    assert strengths == sorted(strengths, reverse=True)
    assert strengths[:1] == [0][: groups.told]


def test_a_scale_that_is_not_finite_is_the_weakest():
    scales = torch.ones(64, dtype=torch.bfloat16)
    scales[3], scales[5], scales[7] = torch.nan, torch.inf, -2.0
    order = lines(64).order(scales).tolist()
    assert order[0] == 7
    assert order[-2:] == [3, 5]


def test_groups_without_anything_in_them_are_alike():
    assert lines(64).strengths(torch.zeros(64)).tolist() == [LEAST] * 8


def test_strong_places_have_more_bits_than_weak_ones():
    """The gradient of a text: words that were filled up have next to none of it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 128, 48, generator=generator)
    x[:, 16:] *= 1e-4
    assert error("wave:1", x) < 0.02
    assert error("had:4", x) > 0.05
    y = codec("wave:1").decode(codec("wave:1").encode(x))
    assert float(y[:, 16:].norm()) < 2 * float(x[:, 16:].norm())


def test_eighths_of_an_octave_are_near_enough():
    sigma = torch.logspace(-4, 4, 500)
    found = sigmas_of(octaves_of(sigma.square()).int())
    assert float((found / sigma).log2().abs().max()) < 1 / 16 + 1e-3
    assert octaves_of(torch.tensor([0.0, float("inf")])).tolist() == [LEAST, 127]


@pytest.mark.parametrize("shape", [(4, 3, 24, 24), (40, 8, 20, 20), (3, 17, 40), (5, 9), (300,)], ids=str)
def test_sections_of_noise_decode_to_a_tensor_of_the_shape(shape):
    a, x = codec("wave:1"), torch.randn(shape)
    packet = a.encode(x)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        noise = [torch.randint(0, 256, part.shape, dtype=torch.uint8, generator=generator) for part in packet.sections]
        forged = Packet(packet.spec, packet.dtype, packet.shape, packet.order, tuple(noise))
        assert a.decode(forged).shape == x.shape


def test_a_value_that_is_not_finite_spoils_its_own_place_alone():
    x = maps(samples=4, size=32)
    x[2, 3, 20, 5] = torch.inf
    y = codec("wave:4").decode(codec("wave:4").encode(x))
    lost = torch.zeros_like(x, dtype=torch.bool)
    lost[2, :, 16:, :16] = True
    assert torch.equal(y.isnan(), lost)
    assert float((y - x)[~lost].norm() / x[~lost].norm()) < 1e-2


def test_what_is_known_of_a_large_packet_is_not_kept():
    """It took a hundred times the memory of what was told, and stayed when the sender had gone."""
    a = codec("wave:8")
    _shared.cache_clear()
    for channels, kept in ((2048, 0), (16, 1)):
        x = torch.randn(16, channels, 12, 12)
        assert a.decode(a.encode(x)).shape == x.shape
        assert _shared.cache_info().currsize == kept


def test_autocast_changes_nothing():
    x = maps()
    expected = bytes(codec("wave:1").encode(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        packet = codec("wave:1").encode(x)
        inside = codec("wave:1").decode(packet)
    assert bytes(packet) == expected
    assert torch.equal(inside, codec("wave:1").decode(packet))


def test_bits_may_be_a_fraction_and_are_checked():
    assert codec("wave:.6").spec == "wave:0.6/16"
    assert codec("wave:0.01/8").spec == "wave:0.01/8"
    for wrong in ("wave:0", "wave:9", "wave:0.001", "wave:x", "wave:1/1", "wave:1/33", "wave"):
        with pytest.raises(SpecError):
            codec(wrong)
