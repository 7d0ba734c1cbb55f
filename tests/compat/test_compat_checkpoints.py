"""Checkpoints written by torchgpipe, by another balance or by the plain module all load."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn

from thinpipe import Pipe
from thinpipe.torchgpipe import GPipe

CPUS = ["cpu", "cpu", "cpu"]


def named_model(seed=1):
    torch.manual_seed(seed)
    layers = [("a", nn.Linear(2, 3)), ("b", nn.BatchNorm1d(3)), ("c", nn.Sequential(nn.Linear(3, 3), nn.Tanh()))]
    model = nn.Sequential(OrderedDict([*layers, ("d", nn.Linear(3, 1))]))
    model(torch.randn(4, 2))
    return model


def numbered_model(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1))


def assert_same_weights(pipe, model):
    for layer, other in zip(pipe, model, strict=True):
        torch.testing.assert_close(layer.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_keys_are_those_of_torchgpipe():
    torchgpipe = pytest.importorskip("torchgpipe")
    ours = GPipe(named_model(), [2, 2], devices=CPUS).state_dict()
    theirs = torchgpipe.GPipe(named_model(), [2, 2], devices=CPUS).state_dict()
    assert list(ours) == list(theirs)
    assert "partitions.0.a.weight" in ours and "partitions.1.c.0.bias" in ours
    assert list(GPipe(numbered_model(), [1, 2], devices=CPUS).state_dict())[:3] == [
        "partitions.0.0.weight",
        "partitions.0.0.bias",
        "partitions.1.1.weight",
    ]


@pytest.mark.parametrize("make", [named_model, numbered_model])
@pytest.mark.parametrize("saved", ["one partition", "three partitions", "the plain module", "a Pipe"])
def test_a_checkpoint_of_another_shape_loads(make, saved):
    source = make()
    layers = len(source)
    wrapped = {
        "one partition": lambda module: GPipe(module, [layers], devices=CPUS),
        "three partitions": lambda module: GPipe(module, [1, 1, layers - 2], devices=CPUS),
        "the plain module": lambda module: module,
        "a Pipe": lambda module: Pipe(module, [1, layers - 1], devices=CPUS),
    }[saved](copy.deepcopy(source))
    state = wrapped.state_dict()
    before = list(state)
    target = GPipe(make(seed=2), [2, layers - 2], devices=CPUS)
    target.load_state_dict(state)
    assert_same_weights(target, source)
    assert list(state) == before


@pytest.mark.parametrize("balance", [[2, 2], [1, 2, 1]])
def test_a_checkpoint_of_torchgpipe_with_deferred_batch_norm_loads(balance):
    """torchgpipe saved its deferred layers' sums as buffers; strict loading must forgive them."""
    torchgpipe = pytest.importorskip("torchgpipe")
    source = torchgpipe.GPipe(named_model(), balance, devices=CPUS, chunks=2, deferred_batch_norm=True)
    source(torch.randn(4, 2))
    state = source.state_dict()
    assert any(key.endswith("sum_squares") for key in state)
    target = GPipe(named_model(seed=2), [2, 2], devices=CPUS, deferred_batch_norm=True)
    target.load_state_dict(state)
    torch.testing.assert_close(target[1].running_var, source[1].running_var)
    torch.testing.assert_close(target.eval()(torch.ones(4, 2)), source.eval()(torch.ones(4, 2)))


def test_torchgpipe_loads_what_is_saved_here():
    torchgpipe = pytest.importorskip("torchgpipe")
    source = GPipe(named_model(), [2, 2], devices=CPUS)
    target = torchgpipe.GPipe(named_model(seed=2), [2, 2], devices=CPUS)
    target.load_state_dict(source.state_dict())
    assert_same_weights(source, target)


def test_a_checkpoint_loads_into_a_pipe_inside_another_module():
    source = nn.ModuleDict({"head": nn.Linear(2, 2), "body": GPipe(named_model(), [1, 3], devices=CPUS)})
    target = nn.ModuleDict({"head": nn.Linear(2, 2), "body": GPipe(named_model(seed=2), [2, 2], devices=CPUS)})
    target.load_state_dict(source.state_dict())
    assert_same_weights(target["body"], source["body"])


def test_a_layer_learns_in_which_version_it_was_saved():
    """Layers that changed their format read the version to know which one they are given."""
    read = []

    class Versioned(nn.Linear):
        _version = 7

        def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
            read.append(local_metadata.get("version"))
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def model():
        return nn.Sequential(nn.Tanh(), Versioned(1, 1))

    for source in (model(), GPipe(model(), [2], devices=CPUS), GPipe(model(), [1, 1], devices=CPUS)):
        GPipe(model(), [1, 1], devices=CPUS).load_state_dict(source.state_dict())
    assert read == [7, 7, 7]


def test_a_layer_called_partitions_confuses_nobody():
    def model(seed):
        torch.manual_seed(seed)
        return nn.Sequential(OrderedDict(partitions=nn.Linear(2, 2), last=nn.Linear(2, 2)))

    for source in (model(1), GPipe(model(1), [2], devices=CPUS)):
        target = GPipe(model(2), [1, 1], devices=CPUS)
        target.load_state_dict(source.state_dict())
        assert_same_weights(target, source)


def test_what_belongs_to_no_layer_is_still_reported():
    pipe = GPipe(numbered_model(), [1, 2], devices=CPUS)
    state = numbered_model().state_dict()
    state["partitions.0.7.weight"] = state.pop("0.weight")
    with pytest.raises(RuntimeError, match=r"Missing.*partitions\.0\.0\.weight") as caught:
        pipe.load_state_dict(state)
    assert "Unexpected" in str(caught.value) and "partitions.0.7.weight" in str(caught.value)
    missing, unexpected = pipe.load_state_dict(state, strict=False)
    assert missing == ["partitions.0.0.weight"] and unexpected == ["partitions.0.7.weight"]


def test_an_optimizer_state_moves_over_with_the_weights():
    """The order of parameters is the plain module's, so an optimizer's state fits whatever the balance."""
    torchgpipe = pytest.importorskip("torchgpipe")
    x = torch.randn(4, 2)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    theirs = torchgpipe.GPipe(numbered_model(), [1, 2], devices=CPUS, chunks=2)
    old = torch.optim.Adam(theirs.parameters(), lr=0.1)
    step(theirs, old)
    ours = GPipe(numbered_model(seed=2), [2, 1], devices=CPUS, chunks=2)
    new = torch.optim.Adam(ours.parameters(), lr=0.1)
    ours.load_state_dict(theirs.state_dict())
    new.load_state_dict(copy.deepcopy(old.state_dict()))
    step(theirs, old)
    step(ours, new)
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))
