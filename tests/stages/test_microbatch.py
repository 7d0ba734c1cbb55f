"""Cutting a batch and putting it together again loses nothing, whatever its size and nesting."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_flatten, tree_unflatten

from thinpipe import NoChunk
from thinpipe.errors import BatchError
from thinpipe.stages.microbatch import Batch, gather, row_counts

leaves = st.sampled_from(["tensor", "scalar", "text", "none"])
nestings = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(rows=st.integers(0, 200), chunks=st.integers(1, 50))
def test_rows_are_spread_evenly_over_at_most_as_many_micro_batches(rows, chunks):
    counts = row_counts(rows, chunks)
    assert sum(counts) == rows
    assert len(counts) == max(1, min(rows, chunks))
    assert max(counts) - min(counts) <= 1


@given(nesting=nestings, rows=st.integers(1, 9), chunks=st.integers(1, 12))
def test_a_batch_that_was_cut_and_merged_is_the_batch(nesting, rows, chunks):
    kinds, spec = tree_flatten(nesting)
    make = {"tensor": lambda: torch.rand(rows, 2), "scalar": lambda: torch.rand(()), "text": lambda: "x"}
    values = [make[kind]() if kind in make else None for kind in kinds]
    batch = Batch.of(tree_unflatten(values, spec), chunks)
    micro = batch.micro_batches()
    merged, layout = gather(micro, [batch.spec] * len(micro), batch.rows)
    again, spec_again = tree_flatten(layout.nest(merged))
    assert spec_again == spec
    for ours, theirs in zip(again, values, strict=True):
        torch.testing.assert_close(ours, theirs) if isinstance(theirs, torch.Tensor) else None
        assert isinstance(theirs, torch.Tensor) or ours == theirs


@given(rows=st.integers(1, 20), chunks=st.integers(1, 25))
def test_gradients_are_split_as_the_outputs_were_merged(rows, chunks):
    batch = Batch.of(torch.rand(rows, 3), chunks)
    micro = batch.micro_batches()
    _, layout = gather(micro, [batch.spec] * len(micro), batch.rows)
    grad = torch.rand(rows, 3)
    pieces = layout.scatter(0, grad)
    assert [len(piece) for piece in pieces] == batch.rows
    torch.testing.assert_close(batch.gather_grads([[piece] for piece in pieces]), [grad])


def test_a_missing_gradient_counts_as_zero_beside_others():
    batch = Batch.of((torch.rand(5, 2), NoChunk(torch.rand(3))), 2)
    ones, whole = torch.ones(3, 2), torch.ones(3)
    cut, table = batch.gather_grads([[ones, whole], [None, whole]])
    assert torch.equal(cut, torch.tensor([[1.0, 1.0]] * 3 + [[0.0, 0.0]] * 2))
    assert torch.equal(table, torch.full((3,), 2.0))
    assert batch.gather_grads([[None, None], [None, None]]) == [None, None]


def test_the_mean_of_a_scalar_is_weighted_by_rows():
    batch = Batch.of(torch.arange(5.0), 2)
    means = [[piece[0].mean()] for piece in batch.micro_batches()]
    merged, layout = gather(means, [batch.spec] * 2, batch.rows)
    torch.testing.assert_close(merged[0], torch.arange(5.0).mean())
    torch.testing.assert_close(layout.scatter(0, torch.tensor(1.0)), [torch.tensor(0.6), torch.tensor(0.4)])


def test_integer_scalars_must_agree():
    batch = Batch.of(torch.arange(4.0), 2)
    same, _ = gather([[torch.tensor(2)], [torch.tensor(2)]], [batch.spec] * 2, batch.rows)
    assert same[0] == 2
    with pytest.raises(BatchError, match="a row for each row"):
        gather([[torch.tensor(2)], [torch.tensor(3)]], [batch.spec] * 2, batch.rows)


def test_no_chunk_takes_tensors_only():
    with pytest.raises(BatchError, match="takes a tensor, got list"):
        NoChunk([1])
