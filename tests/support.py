"""What many tests share: one training step, done by a bare module and by a Pipe, and the comparison of the two."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from thinpipe import Pipe
from thinpipe.skip import pop, skippable, stash

CHECKPOINT_MODES = ["always", "except_last", "never"]
WAIT = 20
"""Seconds to wait for another stage; reached only where stages do not work at the same time."""


@dataclass
class Outcome:
    """All that one training step leaves behind."""

    outputs: list
    input_grads: list
    grads: dict
    buffers: dict
    updated: dict


def square_loss(output):
    """A loss that is a mean over rows of every output, so that it does not matter how the batch was cut."""
    return sum(
        x.square().mean() if x.dim() else x for x in tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad
    )


def train_once(module, sample, loss=square_loss):
    """Takes one step of SGD and collects everything that can be compared."""
    inputs = fresh(sample)
    parameters = dict(module.named_parameters())
    output = module(inputs)
    loss(output).backward()
    grads = {name: parameter.grad for name, parameter in parameters.items()}
    if trained := [parameter for parameter in parameters.values() if parameter.grad is not None]:
        torch.optim.SGD(trained, lr=0.1).step()
    return Outcome(
        outputs=[x.detach() for x in tree_leaves(output) if isinstance(x, Tensor)],
        input_grads=[x.grad for x in tree_leaves(inputs) if isinstance(x, Tensor)],
        grads=grads,
        buffers=dict(module.named_buffers()),
        updated={name: parameter.detach() for name, parameter in parameters.items()},
    )


def fresh(sample):
    """Copies an input, as leaves of its own."""
    return tree_map_only(Tensor, lambda x: x.detach().clone().requires_grad_(x.requires_grad), sample)


def assert_same(ours, theirs, **tolerance):
    """Compares two outcomes, name by name."""
    torch.testing.assert_close(ours.outputs, theirs.outputs, **tolerance)
    torch.testing.assert_close(ours.input_grads, theirs.input_grads, **tolerance)
    torch.testing.assert_close(ours.grads, theirs.grads, **tolerance)
    torch.testing.assert_close(ours.buffers, theirs.buffers, **tolerance)
    torch.testing.assert_close(ours.updated, theirs.updated, **tolerance)


def assert_trains_like_one_device(
    model, sample, balance, *, loss=square_loss, reference=None, tolerance=None, **options
):
    """Trains copies of a model, bare (or by a reference) and in a Pipe, and compares everything."""
    bare, piped = copy.deepcopy(model), copy.deepcopy(model)
    pipe = Pipe(piped, balance, devices=["cpu"] * len(balance), **options)
    assert_same(
        train_once(pipe, sample, loss),
        train_once(reference(bare) if reference else bare, sample, loss),
        **(tolerance or {}),
    )


class InMicroBatches(nn.Module):
    """One device that takes a batch in pieces, one after the other: what BatchNorm sees in a pipeline."""

    def __init__(self, module, rows):
        super().__init__()
        self._modules.update(module._modules)
        self.body = [module]
        self.rows = rows

    def forward(self, x):
        return torch.cat([self.body[0](piece) for piece in torch.split(x, self.rows)])


@skippable(stash=["early"])
class Begin(nn.Module):
    """Stashes twice its input."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        yield stash("early", x * 2)
        return self.linear(x)


@skippable(pop=["early"])
class End(nn.Module):
    """Adds what was stashed."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        early = yield pop("early")
        return self.linear(x) + early


class Meet(torch.autograd.Function):
    """Waits at a barrier in its backward."""

    @staticmethod
    def forward(ctx, x, barrier):
        ctx.barrier = barrier
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.barrier.wait(WAIT)
        return grad, None
