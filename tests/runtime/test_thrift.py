"""``recompute="cheap"``: the results of costly operations are kept, everything else is recomputed, nothing changes."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from support import assert_trains_like_one_device
from thinpipe import Pipe
from thinpipe.errors import RecomputeError
from thinpipe.models import resnet18, unet
from thinpipe.runtime.thrift import COSTLY, Results


class Counting(TorchDispatchMode):
    """Counts costly and other operations that are really done, if whatever replaces them is entered later."""

    def __init__(self):
        super().__init__()
        self.costly = self.others = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.costly += func in COSTLY
        self.others += func not in COSTLY
        return func(*args, **(kwargs or {}))


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.0),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(inplace=True),  # on the result of a convolution, which must then be computed again
        nn.Flatten(),
        nn.Linear(8 * 36, 10),
    ).double()


@pytest.mark.parametrize("checkpoint", ["always", "except_last"])
@pytest.mark.parametrize("balance", [[8], [3, 5], [1, 4, 1, 2]])
def test_it_trains_like_one_device(balance, checkpoint):
    x = torch.rand(5, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    model = convolutional()
    model[1] = nn.InstanceNorm2d(8).double()  # whose statistics do not depend on the micro-batch
    assert_trains_like_one_device(model, x, balance, chunks=3, checkpoint=checkpoint, recompute="cheap")


@pytest.mark.parametrize(
    "network", [lambda: unet(1, 4, in_place=True), lambda: resnet18(num_classes=4)], ids=["unet", "resnet18"]
)
def test_networks_with_skips_and_changes_in_place_train_as_if_all_were_recomputed(network):
    x = torch.rand(4, 3, 64, 64)
    gradients = []
    for recompute in ("all", "cheap"):
        torch.manual_seed(0)
        model = network()
        half = len(model) // 2
        pipe = Pipe(
            model, [half, len(model) - half], devices=["cpu"] * 2, chunks=2, checkpoint="always", recompute=recompute
        )
        torch.manual_seed(1)
        pipe(x).square().mean().backward()
        gradients.append([p.grad for p in pipe.parameters()])
    torch.testing.assert_close(*gradients)


def test_a_kept_result_is_not_computed_again_and_all_else_is():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 4))
    x, results = torch.rand(2, 4), Results()
    with Counting() as first, torch.no_grad(), results.gathered():
        model(x)
    with Counting() as again, results.replayed():
        output = model(x)
    assert (first.costly, again.costly) == (2, 0)
    assert again.others > 0
    assert output.grad_fn is not None


def test_a_backward_may_be_repeated_though_layers_change_kept_results_in_place():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    pipe = Pipe(model, [2, 1], devices=["cpu"] * 2, chunks=2, checkpoint="always", recompute="cheap")
    loss = pipe(x).square().sum()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in pipe.parameters()]
    loss.backward()
    torch.testing.assert_close([p.grad for p in pipe.parameters()], [2 * grad for grad in once])


def test_dropout_draws_the_same_again():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    x = torch.rand(16, 8)
    results = []
    for recompute in ("all", "cheap"):
        pipe = Pipe(model, [1, 2], devices=["cpu"] * 2, chunks=4, checkpoint="always", recompute=recompute)
        pipe.zero_grad()
        torch.manual_seed(3)
        pipe(x).sum().backward()
        results.append([p.grad.clone() for p in pipe.parameters()])
    torch.testing.assert_close(*results)


class Fickle(nn.Module):
    """Does something else whenever it is called again."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x @ torch.ones(4, 4) if self.calls == 1 else torch.baddbmm(x[None], x[None], torch.ones(1, 4, 4))[0]


def test_a_layer_that_does_not_repeat_itself_is_named():
    pipe = Pipe(nn.Sequential(Fickle()), [1], devices=["cpu"], checkpoint="always", recompute="cheap")
    loss = pipe(torch.rand(2, 4, requires_grad=True)).sum()
    with pytest.raises(RecomputeError, match="does not repeat itself"):
        loss.backward()


def test_another_word_is_refused():
    with pytest.raises(ValueError, match=r"one of 'all', 'cheap', got 'some'$"):
        Pipe(nn.Sequential(nn.Linear(1, 1)), [1], devices=["cpu"], recompute="some")
