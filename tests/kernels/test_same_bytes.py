"""The compiled kernels give the bytes of the plain ones, for every function, value and size."""

from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from codec_support import SPECS, raw, tensor_of, tensors
from thinpipe import codec
from thinpipe.codecs.laplace import tables
from thinpipe.kernels import REFERENCE, cpu_kernels, using
from thinpipe.kernels.planes import packed_size
from thinpipe.kernels.reference import grids_between
from thinpipe.kernels.reference_blocks import ROTATED, signs

CPU = cpu_kernels()
LARGE = [
    "uniform:5",
    "uniform:8,sr",
    "sort:9+3",
    "kmeans:3",
    "block:4",
    "block:7/24,sr",
    "had:4/64",
    "nf:4",
    "topk:0.1",
]
many = settings(deadline=None, max_examples=60)
sizes = st.one_of(st.integers(1, 300), st.sampled_from([1023, 1024, 1025, 2048, 5000]))
few_bits = st.integers(1, 8)
seeds = st.one_of(st.none(), st.integers(0, 2**31 - 1))

floats = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=True)
odd_floats = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)


def arrays(elements):
    """Short arrays of any floats, -0 and subnormals among them, and longer ones of one temper."""
    short = hnp.arrays("float32", st.integers(1, 70), elements=elements).map(torch.from_numpy)
    return st.one_of(short, tensors(dtypes=[torch.float32], shapes=sizes.map(lambda n: (n,))))


@contextmanager
def on(kernels, threads):
    """Uses one set of kernels, the compiled ones on so many threads.

    The plain ones stay on one: torch's own threads wait by spinning, which takes for ever on cores that others use.
    """
    torch.set_num_threads(threads if kernels is CPU else 1)
    try:
        with using(kernels):
            yield
    finally:
        torch.set_num_threads(1)


def same(name, *args, threads=1):
    """Calls a function of both sets of kernels, and demands the same bytes of both."""
    results = []
    for kernels in (CPU, REFERENCE):
        with on(kernels, threads):
            result = getattr(kernels, name)(*args)
        results.append(result if isinstance(result, tuple) else (result,))
    for a, b in zip(*results, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert raw(a) == raw(b), (name, a, b)
    return results[1]


def assert_same_message(spec, x, threads=1):
    """Encodes and decodes with both sets of kernels, and demands the same bytes of both."""
    results = []
    for kernels in (CPU, REFERENCE):
        with on(kernels, threads):
            a = codec(spec)
            packet = a.encode(x)
            results.append((bytes(packet), raw(a.decode(packet))))
    assert results[0] == results[1], spec


def test_the_compiled_kernels_are_there():
    assert CPU.name == "cpu"


@pytest.mark.parametrize("bits", range(1, 17))
@settings(deadline=None, max_examples=15)
@given(n=sizes, seed=st.integers(0, 999))
def test_codes_of_every_width_are_packed_alike_and_come_back(bits, n, seed):
    codes = torch.randint(0, 2**bits, (n,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    (packed,) = same("pack", codes, bits)
    assert packed.numel() == packed_size(n, bits) <= -(-n * bits // 8) + 2
    (unpacked,) = same("unpack", packed, n, bits)
    assert torch.equal(unpacked, codes)


@many
@given(x=arrays(odd_floats))
def test_extents_are_alike_and_nan_where_anything_is_not_finite(x):
    (ends,) = same("extent", x)
    assert ends.isnan().all() if not torch.isfinite(x).all() else ends.tolist() == [x.min(), x.max()]


@many
@given(x=arrays(odd_floats), bits=st.integers(1, 16), seed=seeds)
def test_even_grids_are_alike(x, bits, seed):
    (grid,) = same("grids", x, x[:0], 2**bits - 1)
    low, _, _, scale = grid.unbind()
    (packed,) = same("affine", x, low, scale, bits, seed)
    table = torch.linspace(-1, 1, 2**bits)
    same("lookup", packed, table, x.numel(), bits)


@many
@given(x=arrays(floats), low=floats, scale=st.floats(0, width=32, allow_infinity=False), bits=st.integers(1, 16))
def test_grids_that_values_lie_outside_of_are_alike(x, low, scale, bits):
    same("affine", x, torch.tensor(low), torch.tensor(scale), bits, None)


@many
@given(x=arrays(odd_floats))
def test_histograms_are_alike_and_count_everything(x):
    (counts,) = same("histogram", x)
    assert counts.sum() == x.numel()


@many
@given(x=arrays(st.floats(width=32, allow_nan=False)), data=st.data())
def test_order_statistics_are_alike_and_those_of_a_sort(x, data):
    ranks = data.draw(st.lists(st.integers(0, x.numel() - 1), min_size=1, max_size=20))
    (found,) = same("order_statistics", x, ranks)
    assert torch.equal(found, x.sort().values[ranks])


@many
@given(x=arrays(odd_floats), value_bits=few_bits, split_bits=few_bits)
def test_buckets_are_alike(x, value_bits, split_bits):
    ranks = torch.linspace(0, x.numel() - 1, 2**split_bits).long()
    ranked = x.sort().values
    lows = ranked[ranks] + 0.0
    highs = torch.cat([lows[1:], ranked[-1:]])
    finite = torch.isfinite(x).all()
    known = grids_between(lows, torch.where(finite, highs, torch.nan), 2**value_bits - 1)
    same("buckets", x, known[0], known[3], value_bits, split_bits)


@many
@given(x=arrays(odd_floats), value_bits=few_bits, data=st.data())
def test_grids_of_buckets_are_alike_and_reach_from_least_to_greatest_value(x, value_bits, data):
    count = data.draw(st.integers(0, 6))
    borders = x[data.draw(st.lists(st.integers(0, x.numel() - 1), min_size=count, max_size=count))].sort().values + 0.0
    (found,) = same("grids", x, borders, 2**value_bits - 1)
    if not torch.isfinite(x).all():
        assert found.isnan().all()
        return
    edges = [-torch.inf, *borders.tolist(), torch.inf]
    for (low, high, step, _), (start, end) in zip(found.T.tolist(), pairwise(edges), strict=True):
        inside = x[(x >= start) & (x < end)].tolist() or [max(start, float(x.min()))]
        assert (low, high) == (min(inside), max(inside))
        assert (step == 0) == (low == high)


@many
@given(x=arrays(odd_floats), bits=few_bits, data=st.data())
def test_nearest_levels_are_alike(x, bits, data):
    count = 2**bits - 1
    borders = torch.tensor(data.draw(st.lists(floats, min_size=count, max_size=count)) if bits < 4 else range(count))
    same("nearest", x, borders.float().sort().values, bits)
    same("nearest", x, torch.full((count,), torch.nan), bits)


@settings(deadline=None, max_examples=150)
@given(
    x=arrays(odd_floats),
    bits=st.integers(1, 16),
    group=st.one_of(st.integers(2, 40), st.sampled_from([64, 100, 128, 1000, 1024, 3000, 5000])),
    seed=seeds,
)
def test_blocks_are_alike(x, bits, group, seed):
    meta, codes = same("blocks_encode", x, bits, group, seed)
    same("blocks_decode", meta, codes, x.numel(), bits, group)


@many
@given(n=sizes, bits=st.integers(1, 16), group=st.integers(2, 200), data=st.data())
def test_blocks_that_nobody_encoded_are_decoded_alike(n, bits, group, data):
    """Anything may come over a wire: steps that are negative, infinite or NaN, and codes at random."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    meta = torch.randint(-(2**15), 2**15, (-(-n // group), 2), generator=generator).to(torch.int16)
    codes = torch.randint(0, 256, (packed_size(n, bits),), generator=generator).to(torch.uint8)
    ours, plain = (k.blocks_decode(meta, codes, n, bits, group) for k in (CPU, REFERENCE))
    torch.testing.assert_close(ours, plain, rtol=0, atol=0, equal_nan=True)


@settings(deadline=None, max_examples=150)
@given(x=arrays(odd_floats), bits=few_bits, log_group=st.integers(0, 12))
def test_rotated_blocks_are_alike(x, bits, log_group):
    meta, codes = same("hadamard_encode", x, bits, 2**log_group)
    same("hadamard_decode", meta, codes, x.numel(), bits, 2**log_group)


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("group", [16, 256, 512, 1024, 4096])
def test_sums_over_the_worst_of_rotated_blocks_do_not_overflow(bits, group):
    """A block that is one row of the rotation has all of itself in one place, after it or before it."""
    most = torch.tensor([1.99999988])
    alike = (most * signs(group)).expand(2, group)
    single = torch.nn.functional.one_hot(torch.tensor([0, group - 1]), group) * most
    noise = torch.randn(2, group, generator=torch.Generator().manual_seed(0)) * 1e-3
    for x in (alike, alike + noise, single, single + noise):
        meta, codes = same("hadamard_encode", x.reshape(-1), bits, group)
        same("hadamard_decode", meta, codes, x.numel(), bits, group)


@many
@given(n=sizes, bits=few_bits, log_group=st.integers(0, 8), seed=st.integers(0, 999))
def test_rotated_blocks_that_nobody_encoded_are_decoded_alike(n, bits, log_group, seed):
    """Anything may come over a wire: scales that are negative, infinite or NaN, and codes at random."""
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-n >> log_group)
    meta = torch.randint(-(2**15), 2**15, (blocks, 2), generator=generator).to(torch.int16)
    meta[::2, 1] = ROTATED
    codes = torch.randint(0, 256, (packed_size(blocks << log_group, bits),), generator=generator).to(torch.uint8)
    ours, plain = (k.hadamard_decode(meta, codes, n, bits, 2**log_group) for k in (CPU, REFERENCE))
    torch.testing.assert_close(ours, plain, rtol=0, atol=0, equal_nan=True)


@many
@given(
    widths=st.lists(few_bits, min_size=1, max_size=6),
    columns=st.one_of(st.integers(1, 40), st.sampled_from([1016, 1024, 1025, 2056])),
    seed=st.integers(0, 999),
)
def test_waves_are_alike(widths, columns, seed):
    """Numbers at the edges of cells, and some that are not finite, among them."""
    generator = torch.Generator().manual_seed(seed)
    edges, levels = tables(torch.device("cpu"))
    rows = torch.randn(len(widths), columns, generator=generator) * 2
    chosen = torch.randint(0, 256, rows.shape, generator=generator)
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])[chosen % 4]
    rows = torch.where(chosen < 40, edges[chosen], torch.where(chosen > 250, odd, rows))
    factor = torch.where(torch.rand(columns, generator=generator) < 0.5, 1.0, torch.randn(columns, generator=generator))
    gains = torch.where(torch.rand(len(widths), generator=generator) < 0.5, 1.0, 0.37)
    told = torch.tensor(widths, dtype=torch.int32)
    (packed,) = same("waves_encode", rows, gains, factor, told, edges, sum(widths))
    same("waves_decode", packed, torch.randn(len(widths), generator=generator), told, levels, columns)


@pytest.mark.parametrize("width", range(1, 9))
def test_waves_at_every_edge_and_next_to_it_are_alike(width):
    edges, _ = tables(torch.device("cpu"))
    half = 1 << (width - 1)
    own = edges[half : 2 * half]
    near = [own, torch.nextafter(own, torch.tensor(0.0)), torch.nextafter(own, torch.tensor(torch.inf))]
    extremes = torch.tensor([1e-45, 1e-38, 2**-7, 2**-7.01, 15.9, 16.0, 16.1, 3e38])
    line = torch.cat([*near, extremes])
    rows = torch.cat([line, -line])[None]
    told, ones = torch.tensor([width], dtype=torch.int32), torch.ones(rows.shape[1])
    same("waves_encode", rows, torch.ones(1), ones, told, edges, width)


def test_waves_of_many_columns_are_alike_on_several_threads():
    edges, levels = tables(torch.device("cpu"))
    told = torch.tensor([8, 1, 2, 5, 4], dtype=torch.int32)
    rows, factor = torch.randn(5, 480_000) * 2, torch.rand(480_000)
    (packed,) = same("waves_encode", rows, torch.rand(5), factor, told, edges, 20, threads=2)
    same("waves_decode", packed, torch.rand(5), told, levels, 480_000, threads=2)


@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=10)
@given(x=tensors())
def test_every_codec_writes_and_reads_the_same_with_either_kernels(spec, x):
    assert_same_message(spec, x)


@pytest.mark.parametrize("n", [2 * 65536, 2 * 65536 + 1, 3 * 65536 - 5, 200_003])
def test_tensors_that_several_threads_share_are_alike(n):
    for temper in ("gaussian", "relu", "log-normal"):
        x = tensor_of(temper, (n,), seed=n)
        for spec in LARGE:
            assert_same_message(spec, x, threads=2)
        for bits in (1, 3, 12, 16):
            codes = x.view(torch.int32) & (2**bits - 1)
            same("unpack", *same("pack", codes, bits, threads=2), n, bits, threads=2)
        same("histogram", x, threads=2)
        same("extent", x, threads=2)
