"""A training loop written for torchgpipe finds the same gradients here, and the same as the bare module."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import thinpipe.torchgpipe.skip
from support import CHECKPOINT_MODES
from thinpipe.torchgpipe import GPipe


def small_net(skip):
    """A little U: what the first layer saw comes back in the last."""

    @skip.skippable(stash=["early"])
    class Down(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x):
            yield skip.stash("early", x * 2)
            return self.linear(x).relu()

    @skip.skippable(pop=["early"])
    class Up(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 6)

        def forward(self, x):
            early = yield skip.pop("early")
            return self.linear(x) + early

    torch.manual_seed(1)
    return nn.Sequential(Down(), nn.Linear(4, 4), nn.Tanh(), Up(), nn.Linear(6, 3))


def train(model, batches):
    """Runs the loop; returns its losses, the last gradients and the weights, in the model's order."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.grad for p in model.parameters()], [p.detach() for p in model.parameters()]


def some_batches(rows=(8, 8, 5)):
    return [(torch.randn(n, 6), torch.randint(3, (n,))) for n in rows]


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("chunks", [1, 4])
def test_a_training_loop_equals_torchgpipe_and_the_bare_module(checkpoint, chunks):
    torchgpipe, skip = pytest.importorskip("torchgpipe"), pytest.importorskip("torchgpipe.skip")
    options = {"balance": [2, 1, 2], "devices": ["cpu"] * 3, "chunks": chunks, "checkpoint": checkpoint}
    batches = some_batches()
    ours = train(GPipe(small_net(thinpipe.torchgpipe.skip), **options), batches)
    theirs = train(torchgpipe.GPipe(small_net(skip), **options), batches)
    bare = train(small_net(thinpipe.torchgpipe.skip), batches)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(ours, bare)


def test_tuples_of_tensors_go_in_and_out_as_in_torchgpipe():
    torchgpipe = pytest.importorskip("torchgpipe")

    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, pair):
            a, b = pair
            return self.left(a) + b, self.right(b)

    model = nn.Sequential(Cross(), Cross())
    inputs = torch.randn(4, 2), torch.randn(4, 2)
    results = []
    for gpipe in (GPipe, torchgpipe.GPipe):
        pipe = gpipe(copy.deepcopy(model), [1, 1], devices=["cpu", "cpu"], chunks=2)
        pair = tuple(x.clone().requires_grad_() for x in inputs)
        output = pipe(pair)
        assert type(output) is tuple
        sum(x.square().sum() for x in output).backward()
        results.append((output, [x.grad for x in pair], [p.grad for p in pipe.parameters()]))
    torch.testing.assert_close(*results)


def test_deferred_batch_norm_normalises_as_torchgpipe_and_tracks_as_one_device():
    torchgpipe = pytest.importorskip("torchgpipe")
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    x = torch.randn(8, 3) * 2 + 1
    options = {"balance": [1, 1], "devices": ["cpu", "cpu"], "chunks": 4, "deferred_batch_norm": True}
    ours, theirs = GPipe(copy.deepcopy(model), **options), torchgpipe.GPipe(copy.deepcopy(model), **options)
    torch.testing.assert_close(ours(x), theirs(x))
    model(x)
    torch.testing.assert_close(ours[0].running_mean, theirs[0].running_mean)
    torch.testing.assert_close(ours[0].running_mean, model[0].running_mean)
    torch.testing.assert_close(ours[0].running_var, model[0].running_var)


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_layers_are_told_the_same_about_recomputation(checkpoint):
    torchgpipe = pytest.importorskip("torchgpipe")

    def told(package):
        answers = []

        class Asking(nn.Module):
            def forward(self, x):
                answers.append((x[0].item(), package.is_checkpointing(), package.is_recomputing()))
                return x * 1

        pipe = package.GPipe(nn.Sequential(Asking()), [1], devices=["cpu"], chunks=2, checkpoint=checkpoint)
        pipe(torch.arange(2.0, requires_grad=True)).sum().backward()
        pipe.eval()(torch.arange(2.0))
        return sorted(answers)

    assert told(thinpipe.torchgpipe) == told(torchgpipe)


def test_a_balance_is_found_on_the_cpu_with_torchgpipes_words():
    from thinpipe.torchgpipe.balance import balance_by_size, balance_by_time

    model, sample = small_net(thinpipe.torchgpipe.skip), torch.randn(8, 6)
    by_time = balance_by_time(2, model, sample, timeout=0.01, device="cpu")
    by_size = balance_by_size(2, model, sample, chunks=2, param_scale=4.0, device=torch.device("cpu"))
    assert len(by_time) == len(by_size) == 2 and sum(by_time) == sum(by_size) == 5
    assert balance_by_time(2, model, sample, timeout=0.01)  # without a device: where the model is
    GPipe(model, by_time, devices=["cpu", "cpu"])(sample)
