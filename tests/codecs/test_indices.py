"""Indices in few bytes: every set of them comes back, at a length known beforehand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinpipe.codecs.indices import index_sizes, pack_indices, unpack_indices
from thinpipe.errors import PacketError


def chosen(k, n, seed=0):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:k].sort().values


@settings(deadline=None, max_examples=150)
@given(n=st.integers(1, 5000), share=st.floats(0, 1), seed=st.integers(0, 1000))
def test_any_set_of_indices_comes_back(n, share, seed):
    k = max(1, round(share * n))
    indices = chosen(k, n, seed)
    sections = pack_indices(indices, n)
    assert torch.equal(unpack_indices(sections, k, n), indices)
    assert [section.numel() for section in sections] == index_sizes(k, n)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 1000, 70_000])
def test_all_one_and_the_last_are_sets_like_any(n):
    for indices in (torch.arange(n), torch.tensor([0]), torch.tensor([n - 1])):
        k = indices.numel()
        assert torch.equal(unpack_indices(pack_indices(indices, n), k, n), indices)


def test_a_few_of_very_many_are_found_again():
    n = 3_000_000
    for indices in (torch.tensor([n - 1]), torch.tensor([0, 65_535, 65_536, n - 2]), chosen(5, n)):
        k = indices.numel()
        assert torch.equal(unpack_indices(pack_indices(indices, n), k, n), indices)


@pytest.mark.parametrize("share", [0.5, 0.3, 0.1, 0.05, 0.01, 0.001])
def test_indices_take_no_more_than_a_bitmap_and_little_more_than_they_must(share):
    n = 100_000
    k = int(share * n)
    bits = 8 * sum(index_sizes(k, n))
    entropy = n * -(share * math.log2(share) + (1 - share) * math.log2(1 - share))
    assert bits <= n + 8
    assert entropy <= bits <= 1.25 * entropy


def test_the_drawing_in_the_docstring_is_what_is_packed():
    low, high = pack_indices(torch.tensor([2, 3, 5, 7, 11, 13, 24]), 30)
    assert low.tolist() == [2 | 3 << 2 | 1 << 4 | 3 << 6, 3 | 1 << 2 | 0 << 4]
    assert "".join(f"{byte:08b}"[::-1] for byte in high.tolist()).startswith("11011010100010")


@settings(deadline=None, max_examples=100)
@given(n=st.integers(1, 400), share=st.floats(0, 1), data=st.data())
def test_damaged_indices_are_refused_or_are_other_indices_in_order(n, share, data):
    k = max(1, round(share * n))
    sizes = index_sizes(k, n)
    sections = [
        torch.tensor(list(data.draw(st.binary(min_size=size, max_size=size))), dtype=torch.uint8) for size in sizes
    ]
    try:
        found = unpack_indices(sections, k, n)
    except PacketError:
        return
    assert found.numel() == k
    assert (found.diff() > 0).all()
    assert 0 <= found[0] <= found[-1] < n
