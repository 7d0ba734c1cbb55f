"""``downsample:F``: averages of what is near, of images, sequences and rows, whatever their size."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from codec_support import DTYPES, crossed
from thinpipe import Packet, Pipe, codec, compress
from thinpipe.errors import PacketError


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


SIZES = [(6,), (3, 10), (3, 11), (2, 8, 5), (2, 9, 5), (2, 3, 8, 12), (2, 3, 7, 5), (2, 3, 1, 9), (1, 1, 1, 1)]


def by_autograd(x, factor):
    """Averages and interpolates as PyTorch does, with a graph."""
    sizes = (-1, *x.shape[-3:]) if x.dim() > 3 else (-1, 1, *x.shape[1:]) if x.dim() == 3 else (1, -1, 1, x.shape[-1])
    image = x.mT.unsqueeze(2) if x.dim() == 3 else x.reshape(sizes)
    window = [min(factor, size) for size in image.shape[2:]]
    small = functional.avg_pool2d(image, window, window, ceil_mode=True, count_include_pad=False)
    large = functional.interpolate(small, image.shape[2:], mode="bilinear", align_corners=False)
    return large.squeeze(2).mT if x.dim() == 3 else large.reshape(x.shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_a_gradient_is_that_of_automatic_differentiation(shape, factor, dtype):
    x, grad = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    compress(ours, f"downsample:{factor}", f"downsample:{factor}").backward(grad)
    by_autograd(theirs, factor).backward(grad.double())
    # In a small type the gradient is rounded on its way, when it is small, and where it arrives.
    rounding = 1e-6 if dtype in (torch.float32, torch.float64) else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_a_pipe_trains_with_the_gradients_of_automatic_differentiation(last):
    class Averaged(nn.Module):
        def forward(self, x):
            return by_autograd(x, 2)

    first, second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3)
    images = torch.randn(6, 3, 9, 8)
    if last:
        images = images.contiguous(memory_format=torch.channels_last)
    whole = nn.Sequential(first, Averaged(), second)
    functional.mse_loss(whole(images), torch.ones(6, 2, 7, 6)).backward()
    expected = [p.grad.clone() for p in whole.parameters()]
    whole.zero_grad()
    pipe = Pipe(
        nn.Sequential(first, second),
        [1, 1],
        devices=["cpu"] * 2,
        chunks=2,
        codec="downsample:2",
        grad_codec="downsample:2",
    )
    functional.mse_loss(pipe(images), torch.ones(6, 2, 7, 6)).backward()
    for parameter, grad in zip(pipe.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("chain", ["", "|uniform:8", "|zstd"])
def test_a_gradient_is_as_small_as_the_averages_and_read_by_nobody_else(chain):
    if chain == "|zstd":
        pytest.importorskip("zstandard", reason="the extra zstd is not installed")
    a = codec(f"downsample:2{chain}")
    packet = a.encode(torch.randn(2, 3, 8, 12))
    back = codec(f"downsample:2{chain}").for_gradient_of(packet)
    returned = Packet.from_bytes(bytes(back.encode(torch.randn(2, 3, 8, 12))))
    assert returned.spec == f"adjoint:2{chain}"
    assert chain == "|zstd" or [x.numel() for x in returned.sections] == [x.numel() for x in packet.sections]
    assert a.for_gradient_of(packet).decode(returned).shape == (2, 3, 8, 12)
    with pytest.raises(PacketError):
        a.decode(returned)
    with pytest.raises(PacketError):
        back.decode(replace(returned, shape=torch.Size([2, 3, 8, 14])))


@pytest.mark.parametrize("forward", ["none", "downsample:4", "uniform:8"])
def test_the_gradient_of_what_was_not_averaged_alike_is_a_tensor_like_any_other(forward):
    grad = torch.randn(2, 3, 8, 12)
    back = codec("downsample:2").for_gradient_of(codec(forward).encode(torch.randn(2, 3, 8, 12)))
    assert back.spec == "downsample:2"
    assert torch.equal(back.decode(back.encode(grad)), crossed("downsample:2", grad))
