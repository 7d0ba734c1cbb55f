"""GPipe is the nn.Module that torchgpipe's users know: its attributes, its names, its copies."""

import copy
import io
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn

from thinpipe import NoChunk
from thinpipe.torchgpipe import GPipe
from thinpipe.torchgpipe.batchnorm import DeferredBatchNorm

CPUS = ["cpu", "cpu", "cpu"]


def named_layers():
    return nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=nn.Linear(2, 2), c=nn.Linear(2, 2)))


def test_public_attributes_have_the_types_they_had():
    pipe = GPipe(named_layers(), balance=(2, 1), devices=("cpu", "cpu", "cpu"), chunks=42.0, checkpoint="always")
    assert pipe.balance == [2, 1]
    assert pipe.devices == [torch.device("cpu"), torch.device("cpu")]  # the one too many is let go
    assert GPipe(named_layers(), [3], devices=["cpu:0"]).devices == [torch.device("cpu")]  # as tensors there name it
    assert pipe.chunks == 42 and type(pipe.chunks) is int
    assert pipe.checkpoint == "always"
    always = type("Always", (), {"__str__": lambda _: "always"})()
    assert GPipe(named_layers(), [3], devices=CPUS, checkpoint=always).checkpoint == "always"
    assert GPipe(named_layers(), [3], devices=CPUS).checkpoint == "except_last"


def test_partitions_are_registered_modules():
    pipe = GPipe(named_layers(), [2, 1], devices=CPUS)
    assert type(pipe.partitions) is nn.ModuleList
    assert [type(partition) for partition in pipe.partitions] == [nn.Sequential, nn.Sequential]
    assert pipe.partitions[1].c is pipe[2]
    assert [name for name, _ in pipe.named_children()] == ["partitions"]
    assert [name for name, _ in pipe.named_modules()] == [
        "",
        "partitions",
        "partitions.0",
        "partitions.0.a",
        "partitions.0.b",
        "partitions.1",
        "partitions.1.c",
    ]
    with pytest.raises(AttributeError):
        _ = pipe.a


def test_layers_are_those_of_the_sequence():
    module = named_layers()
    expected = list(module)
    pipe = GPipe(module, [1, 2], devices=CPUS)
    assert len(pipe) == 3
    assert [*pipe] == expected
    assert [pipe[0], pipe[1], pipe[2]] == [pipe[-3], pipe[-2], pipe[-1]] == expected
    assert list(pipe.parameters()) == list(module.parameters())


def test_an_empty_module_is_no_mistake():
    pipe = GPipe(nn.Sequential(), [])
    assert pipe.balance == [] and pipe.devices == [] and len(pipe.partitions) == 0
    assert pipe(torch.tensor(42)) == 42


def test_the_mode_reaches_every_layer():
    pipe = GPipe(named_layers(), [2, 1], devices=CPUS)
    pipe.eval()
    assert not any(module.training for module in pipe.modules())
    pipe.train()
    assert all(module.training for module in pipe.modules())
    assert not any(module.training for module in GPipe(named_layers().eval(), [2, 1], devices=CPUS).modules())


def test_casting_is_allowed():
    pipe = GPipe(named_layers(), [2, 1], devices=CPUS, chunks=2)
    assert pipe.to(torch.double)(torch.ones(2, 2, dtype=torch.double)).dtype is torch.double
    assert pipe.float()(torch.ones(2, 2)).dtype is torch.float
    assert pipe.to(dtype=torch.double)[2].weight.dtype is torch.double


def through_pickle(pipe):
    return pickle.loads(pickle.dumps(pipe))


def through_a_file(pipe):
    file = io.BytesIO()
    torch.save(pipe, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, through_pickle, through_a_file])
def test_a_copy_trains_apart_from_the_original(duplicate):
    """torchgpipe's copies died in their first forward, once the original had run."""
    pipe = GPipe(
        nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=nn.BatchNorm1d(2), c=nn.Linear(2, 1))),
        [2, 1],
        devices=CPUS,
        chunks=2,
        deferred_batch_norm=True,
    )
    x = torch.randn(4, 2)
    before = pipe(x)
    twin = duplicate(pipe)
    assert type(twin) is GPipe and type(twin.partitions) is nn.ModuleList
    assert list(twin.state_dict()) == list(pipe.state_dict())
    assert isinstance(twin[1], DeferredBatchNorm)
    twin(x).sum().backward()
    assert all(p.grad is None for p in pipe.parameters())
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    assert twin[1].num_batches_tracked == 2 and pipe[1].num_batches_tracked == 1
    torch.testing.assert_close(pipe(x), before)
    with pytest.raises(TypeError):
        twin("hello")


def test_a_new_balance_renames_the_layers():
    pipe = GPipe(named_layers(), [1, 1, 1], devices=CPUS)
    weights = list(pipe.parameters())
    assert sum(pipe.rebalance(torch.ones(2, 2), timeout=0.01)) == 3
    assert list(map(id, pipe.parameters())) == list(map(id, weights))
    assert [len(partition) for partition in pipe.partitions] == pipe.balance


def test_a_tensor_may_be_exempt_from_cutting():
    class Add(nn.Module):
        def forward(self, pair):
            x, table = pair
            return x + table.sum()

    pipe = GPipe(nn.Sequential(Add()), [1], devices=CPUS, chunks=2)
    torch.testing.assert_close(pipe((torch.zeros(4), NoChunk(torch.ones(3)))), torch.full((4,), 3.0))
