"""Replicas get parts of the batches that one device would get: nothing twice, nothing left out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

from thinpipe import ReplicaBatches
from thinpipe.data.replicas import Collate


def joined(parts):
    """The batches of all replicas, put together again."""
    return [[row for part in batch for row in part] for batch in zip(*parts, strict=True)]


@given(
    rows=st.integers(0, 40),
    batch_size=st.integers(1, 12),
    replicas=st.integers(1, 5),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_parts_are_the_batches_of_one_device(rows, batch_size, replicas, drop_last, shuffle):
    options = {"batch_size": batch_size, "drop_last": drop_last, "shuffle": shuffle, "replicas": replicas}
    samplers = [ReplicaBatches(rows, replica=replica, **options) for replica in range(replicas)]
    parts = [list(sampler) for sampler in samplers]
    batches = joined(parts)
    if shuffle:
        seen = [row for batch in batches for row in batch]
        assert len(set(seen)) == len(seen) and set(seen) <= set(range(rows))
        assert [len(batch) for batch in batches] == [
            len(batch) for batch in BatchSampler(range(rows), batch_size, drop_last)
        ]
    else:
        assert batches == list(BatchSampler(SequentialSampler(range(rows)), batch_size, drop_last))
    assert all(len(sampler) == len(batches) for sampler in samplers)
    for batch in zip(*parts, strict=True):
        sizes = [len(part) for part in batch]
        assert max(sizes) - min(sizes) <= 1


def test_a_seed_and_an_epoch_decide_the_order():
    def order(seed, epoch):
        sampler = ReplicaBatches(50, replica=0, replicas=1, batch_size=50, shuffle=True, seed=seed)
        sampler.set_epoch(epoch)
        return next(iter(sampler))

    assert order(0, 1) == order(0, 1)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_samplers_and_batch_samplers_of_one_device_are_dealt_out():
    def shuffled():
        return RandomSampler(range(10), generator=torch.Generator().manual_seed(3))

    whole = list(BatchSampler(shuffled(), 4, drop_last=False))
    parts = [list(ReplicaBatches(shuffled(), replica=r, replicas=3, batch_size=4)) for r in range(3)]
    assert joined(parts) == whole
    parts = [list(ReplicaBatches(BatchSampler(shuffled(), 4, False), replica=r, replicas=3)) for r in range(3)]
    assert joined(parts) == whole


def test_an_epoch_goes_on_where_a_restart_left_it():
    sampler = ReplicaBatches(20, replica=1, replicas=2, batch_size=6, shuffle=True)
    whole = list(sampler)
    sampler.set_epoch(0, skip=2)
    assert list(sampler) == whole[2:]
    assert list(sampler) == whole, "the next epoch is a whole one"


def test_a_loader_gives_a_replica_without_rows_an_empty_batch():
    data = TensorDataset(torch.randn(5, 3), torch.arange(5))
    sampler = ReplicaBatches(len(data), replica=1, replicas=2, batch_size=4)
    shapes = [
        (tuple(x.shape), tuple(y.shape)) for x, y in DataLoader(data, batch_sampler=sampler, collate_fn=Collate(data))
    ]
    assert shapes == [((2, 3), (2,)), ((0, 3), (0,))]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"source": 5, "batch_size": 2, "replica": 2}, "replica 2 of 2"),
        ({"source": 5}, "5 rows need a batch_size"),
        ({"source": 5, "batch_size": 0}, "got 0"),
        ({"source": [[1]], "shuffle": True}, "leave shuffle out"),
        ({"source": [[1]], "drop_last": True}, "leave drop_last out"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        ReplicaBatches(**{"replica": 0, "replicas": 2, **options})
