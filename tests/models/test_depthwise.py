"""Convolutions of each channel by itself, which have a way of their own in 16 bits on CPUs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from thinpipe.models.depthwise import Depthwise


def _pair(stride: int) -> tuple[Depthwise, nn.Conv2d]:
    torch.manual_seed(0)
    ours = Depthwise(6, 3, stride=stride)
    plain = nn.Conv2d(6, 6, 3, stride, padding=1, groups=6, bias=False)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def _gradients(layer: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    inputs = inputs.clone().requires_grad_()
    outputs = layer(inputs)
    outputs.float().square().sum().backward()
    found = (outputs.detach(), inputs.grad, layer.weight.grad)
    layer.zero_grad()
    return found


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_autocast_it_is_the_plain_convolution_to_the_last_bit(stride, dtype):
    inputs = torch.randn(3, 6, 9, 9, dtype=dtype)
    for ours, theirs in zip(*(_gradients(each.to(dtype), inputs) for each in _pair(stride)), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("entering", [torch.float32, torch.bfloat16])
def test_under_autocast_it_has_the_plain_one_s_types_and_is_as_near_to_float32(stride, entering):
    inputs = torch.randn(3, 6, 9, 9).to(entering)
    layer, plain = _pair(stride)
    exact = _gradients(plain, inputs.float())
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = _gradients(layer, inputs), _gradients(plain, inputs)
    for mine, other, best in zip(ours, theirs, exact, strict=True):
        assert mine.dtype == other.dtype
        assert (mine - best).norm() <= max((other - best).norm() * 1.5, best.norm() * 2**-8)


def test_weights_of_16_bits_are_trained_in_16_bits():
    layer, _ = _pair(2)
    outputs, inputs, weights = _gradients(layer.bfloat16(), torch.randn(3, 6, 9, 9, dtype=torch.bfloat16))
    assert {outputs.dtype, inputs.dtype, weights.dtype} == {torch.bfloat16}


def test_what_autocast_leaves_in_float64_stays_so():
    layer, _ = _pair(2)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.double()(torch.randn(2, 6, 8, 8, dtype=torch.float64)).dtype == torch.float64
