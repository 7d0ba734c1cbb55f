"""``downsample:F``: averages of what is near, of images, sequences and rows, whatever their size."""

import pytest
import torch
from torch.nn import functional

from codec_support import crossed
from thinpipe import codec


def test_an_image_is_pooled_and_brought_back_by_interpolation():
    x = torch.randn(2, 3, 8, 12)
    small = functional.avg_pool2d(x, 2)
    expected = functional.interpolate(small, (8, 12), mode="bilinear", align_corners=False)
    torch.testing.assert_close(crossed("downsample:2", x), expected)


def test_a_sequence_is_averaged_over_its_positions():
    x = torch.randn(2, 10, 5)
    expected = functional.interpolate(functional.avg_pool1d(x.mT, 5), 10, mode="linear", align_corners=False).mT
    torch.testing.assert_close(crossed("downsample:5", x), expected)


@pytest.mark.parametrize(
    ("shape", "averages"),
    [((), 1), ((1,), 1), ((10,), 4), ((3, 10), 12), ((2, 10, 5), 40), ((2, 3, 7, 8), 54), ((2, 2, 3, 7, 8), 108)],
    ids=str,
)
def test_as_many_averages_are_sent_as_windows_fit_the_last_one_cut_short(shape, averages):
    x = torch.randn(shape)
    packet = codec("downsample:3").encode(x)
    assert packet.sections[0].numel() == 4 * averages
    assert torch.isfinite(codec("downsample:3").decode(packet)).all()


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 9, 4), (2, 3, 5, 7), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("factor", [1, 2, 3, 64])
def test_what_is_smooth_survives(shape, factor):
    x = torch.full(shape, 2.5)
    torch.testing.assert_close(crossed(f"downsample:{factor}", x), x)
