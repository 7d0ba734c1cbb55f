"""``dct``: few bits are enough where neighbours are alike, means are kept, and both ends share bits alike."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from thinpipe import Packet, codec
from thinpipe.codecs.laplace import BENDS, MOST_BITS, cells, tables
from thinpipe.codecs.share import shared
from thinpipe.codecs.tiles import Tiling
from thinpipe.errors import SpecError
from thinpipe.kernels import REFERENCE


def smooth(*shape, seed=0):
    """Draws maps as an early layer has them: neighbours are nearly alike."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.randn(*shape[:-2], -(-shape[-2] // 8), -(-shape[-1] // 8), generator=generator)
    return functional.interpolate(small, shape[-2:], mode="bicubic")


def error(spec, x):
    a = codec(spec)
    return float((a.decode(a.encode(x)) - x).norm() / x.norm())


def test_smooth_maps_take_a_quarter_of_the_bits_of_other_codecs():
    x = smooth(4, 8, 64, 48)
    assert error("dct:1", x) < error("had:4", x)
    assert codec("dct:1").nbytes(x.shape) < 0.3 * codec("had:4").nbytes(x.shape)
    errors = [error(f"dct:{bits}", x) for bits in (0.125, 0.25, 0.5, 1, 2, 4, 8)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-2


def test_noise_gets_no_better_for_it_and_not_much_worse():
    x = torch.randn(4, 8, 64, 48, generator=torch.Generator().manual_seed(0))
    assert error("had:4", x) < error("dct:4", x) < 1.6 * error("had:4", x)


@pytest.mark.parametrize("shape", [(2, 6, 7, 7), (2, 3, 32, 32), (2, 3, 20, 33), (3, 40)], ids=str)
def test_the_mean_of_a_tile_is_kept_at_the_fewest_bits(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).relu() + 0.2
    a = codec("dct:0.02")
    tiling = Tiling.of(x.shape, 16)
    before, after = (tiling.cut(y).mean(1) for y in (x, a.decode(a.encode(x))))
    torch.testing.assert_close(after, before, rtol=0.02, atol=0.02)


def test_what_is_the_same_all_over_a_plane_comes_back_as_it_was():
    """The gradient of an average pool: each plane has one value."""
    x = torch.randn(8, 32, 1, 1, generator=torch.Generator().manual_seed(0)).expand(-1, -1, 7, 7).contiguous()
    assert error("dct:0.02", x) < 4e-3
    assert error("dct:0.2", x) < 1e-4, "what a mean of 16 bits lacks is one more wave"


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    side=st.integers(2, 32),
    seed=st.integers(0, 9),
)
def test_tiles_are_cut_and_joined_without_a_loss(shape, side, seed):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    tiling = Tiling.of(x.shape, side)
    tiles = tiling.cut(x)
    assert tiles.shape == (tiling.count, tiling.size)
    assert tiling.size <= side * side
    assert torch.equal(tiling.joined(tiles).view(x.shape), x)


@settings(deadline=None, max_examples=60)
@given(
    sigmas=st.lists(st.floats(width=16, allow_nan=True, allow_infinity=True), min_size=1, max_size=40),
    share=st.floats(0.01, 8),
)
def test_all_bits_are_shared_whatever_the_sender_says_of_the_waves(sigmas, share):
    told = torch.tensor(sigmas).to(torch.bfloat16)
    total = max(1, round(share * len(sigmas)))
    bits = shared(told, min(total, MOST_BITS * len(sigmas))).tolist()
    assert sum(bits) == min(total, MOST_BITS * len(sigmas))
    assert all(0 <= width <= MOST_BITS for width in bits)
    known = torch.nan_to_num(told.float(), nan=0.0, posinf=0.0).clamp(min=0).tolist()
    by_length = sorted(zip(known, bits, strict=True))
    assert all(a[1] <= b[1] for a, b in pairwise(by_length) if a[0] < b[0])


def test_sections_of_noise_decode_to_a_tensor_of_the_shape():
    a, x = codec("dct:1"), smooth(2, 3, 24, 24)
    packet = a.encode(x)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        noise = [torch.randint(0, 256, part.shape, dtype=torch.uint8, generator=generator) for part in packet.sections]
        forged = Packet(packet.spec, packet.dtype, packet.shape, packet.order, tuple(noise))
        assert a.decode(forged).shape == x.shape


def test_autocast_changes_nothing():
    x = smooth(2, 3, 24, 24)
    expected = bytes(codec("dct:1").encode(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        packet = codec("dct:1").encode(x)
        inside = codec("dct:1").decode(packet)
    assert bytes(packet) == expected
    assert torch.equal(inside, codec("dct:1").decode(packet))


@pytest.mark.parametrize("bits", range(2, MOST_BITS + 1))
def test_no_other_bend_errs_less(bits, monkeypatch):
    best = cells(bits)[1]
    for other in (BENDS[bits] * 0.97, BENDS[bits] * 1.03):
        monkeypatch.setattr("thinpipe.codecs.laplace.BENDS", (*BENDS[:bits], other, *BENDS[bits + 1 :]))
        assert cells.__wrapped__(bits)[1] > best


@pytest.mark.parametrize("bits", range(1, MOST_BITS + 1))
def test_codes_err_as_their_table_says_and_keep_the_mean(bits):
    generator = torch.Generator().manual_seed(bits)
    size = 400_000
    x = torch.empty(1, size).exponential_(math.sqrt(2), generator=generator)
    x *= torch.randint(0, 2, (1, size), generator=generator) * 2 - 1
    edges, levels = tables(x.device)
    widths = torch.tensor([bits], dtype=torch.int32)
    packed = REFERENCE.waves_encode(x, torch.ones(1), torch.ones(size), widths, edges, bits)
    y = REFERENCE.waves_decode(packed, torch.ones(1), widths, levels, size)
    assert float((x - y).square().mean()) == pytest.approx(cells(bits)[1], rel=0.05)
    assert float((x.abs() - y.abs()).mean()) == pytest.approx(0, abs=4e-3)


def test_bits_may_be_a_fraction_and_are_checked():
    assert codec("dct:.5").spec == "dct:0.5/16"
    assert codec("dct:2/8").spec == "dct:2/8"
    assert codec("dct:0.123456789").spec == "dct:0.123456789/16"
    for wrong in ("dct:0", "dct:9", "dct:0.001", "dct:x", "dct:1e2", "dct:1/1", "dct:1/33"):
        with pytest.raises(SpecError):
            codec(wrong)
