"""The levels of numbers that are spread as Laplace's: no others err less, and means are kept."""

import math

import pytest
import torch

from thinpipe.codecs.laplace import BENDS, MOST_BITS, cells, tables
from thinpipe.kernels import REFERENCE


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
