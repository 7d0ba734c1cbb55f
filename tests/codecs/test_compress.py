"""``compress``: a cut inside any graph. Neither coding has a derivative; each direction has its own codec."""

import pytest
import torch
from torch import nn

from codec_support import same_bits, tensor_of
from thinpipe import codec, compress


def coded(spec, x):
    return codec(spec).decode(codec(spec).encode(x))


def test_second_derivatives_are_refused_rather_than_lost():
    x = torch.randn(8, requires_grad=True)
    (grad,) = torch.autograd.grad(compress(x, "block:8", "block:8").square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()


def test_without_codecs_nothing_changes():
    x = torch.randn(4, 5, requires_grad=True)
    y = compress(x)
    assert same_bits(y, x)
    y.backward(torch.ones(4, 5))
    assert torch.equal(x.grad, torch.ones(4, 5))


def test_forward_alone_lets_the_gradient_pass():
    x, grad = torch.randn(4, 50, requires_grad=True), torch.randn(4, 50)
    y = compress(x, forward="uniform:2")
    y.backward(grad)
    assert same_bits(y, coded("uniform:2", x))
    assert same_bits(x.grad, grad)


def test_backward_alone_lets_the_tensor_pass():
    x, grad = torch.randn(4, 50, requires_grad=True), torch.randn(4, 50)
    y = compress(x, backward="sort:4")
    y.backward(grad)
    assert same_bits(y, x)
    assert same_bits(x.grad, coded("sort:4", grad))


def test_each_direction_has_its_own_codec():
    x, grad = torch.randn(2, 6, 50, requires_grad=True), torch.randn(2, 6, 50)
    y = compress(x, forward="svd:2", backward="block:3/16")
    y.backward(grad)
    assert same_bits(y, coded("svd:2", x))
    assert same_bits(x.grad, coded("block:3/16", grad))


def test_codecs_made_once_remember_from_step_to_step():
    back, alone = codec("ef(uniform:2,sr)"), codec("ef(uniform:2,sr)")
    for k in range(4):
        x, grad = torch.randn(60, requires_grad=True), tensor_of("gaussian", (60,), seed=k)
        compress(x, backward=back).backward(grad)
        assert same_bits(x.grad, alone.decode(alone.encode(grad)))


def test_a_model_trains_through_a_cut():
    x = torch.randn(256, 8)
    target = x[:, :1] * x[:, 1:2]
    first, second = nn.Sequential(nn.Linear(8, 32), nn.ReLU()), nn.Linear(32, 1)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=1e-2)
    there, back = codec("block:4/32"), codec("block:4/32,sr")
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = (second(compress(first(x), there, back)) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
