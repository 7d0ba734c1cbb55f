"""What a Pipe takes and returns: anything the first and the last layer can agree on."""

import copy
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from support import CHECKPOINT_MODES, assert_trains_like_one_device
from thinpipe import NoChunk, Pipe
from thinpipe.errors import BatchError


class Pair(NamedTuple):
    left: Any
    right: Any


class Mix(nn.Module):
    """Takes and returns a dictionary with a tensor, a mask, a nested pair and things that are no tensors."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, batch):
        x = self.linear(batch["x"]) * batch["mask"][:, None] * batch["scale"]
        left, (right, name) = batch["pair"]
        return {**batch, "x": x, "pair": (left + x, (right, name))}


def mix_input(rows=5):
    return {
        "x": torch.rand(rows, 4, dtype=torch.float64, requires_grad=True),
        "mask": torch.rand(rows, dtype=torch.float64) > 0.3,
        "scale": 0.5,
        "pair": (
            torch.rand(rows, 4, dtype=torch.float64, requires_grad=True),
            (torch.arange(rows), "a name"),
        ),
        "nothing": None,
    }


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("chunks", [1, 2, 8])
@pytest.mark.parametrize("balance", [[3], [1, 2], [1, 1, 1]], ids=str)
def test_nested_inputs_with_values_that_are_no_tensors(balance, chunks, checkpoint):
    model = nn.Sequential(Mix(), Mix(), Mix()).double()
    assert_trains_like_one_device(model, mix_input(), balance, chunks=chunks, checkpoint=checkpoint)


def test_what_is_no_tensor_comes_out_as_it_went_in():
    pipe = Pipe(nn.Sequential(Mix(), Mix()).double(), [1, 1], devices=["cpu"] * 2, chunks=2)
    sample = mix_input()
    output = pipe(sample)
    assert output["scale"] == 0.5 and output["nothing"] is None
    assert output["pair"][1][1] == "a name"
    assert torch.equal(output["pair"][1][0], torch.arange(5))
    assert not output["mask"].requires_grad


def test_named_tuples_and_lists_keep_their_type():
    class Swap(nn.Module):
        def forward(self, pair):
            return Pair(pair.right, [pair.left])

    class Unlist(nn.Module):
        def forward(self, pair):
            return Pair(pair.left, pair.right[0])

    pipe = Pipe(nn.Sequential(Swap(), Unlist()), [1, 1], devices=["cpu"] * 2, chunks=2)
    left, right = torch.rand(3, 2), torch.rand(3, 1)
    output = pipe(Pair(left, right))
    assert isinstance(output, Pair)
    assert torch.equal(output.left, right) and torch.equal(output.right, left)


class MeanLoss(nn.Module):
    def forward(self, x):
        return x.square().mean()


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("rows", [1, 4, 5])
def test_a_scalar_loss_is_the_mean_over_all_rows_however_uneven(rows, checkpoint):
    model = nn.Sequential(nn.Linear(4, 4), MeanLoss()).double()
    x = torch.rand(rows, 4, dtype=torch.float64, requires_grad=True)
    assert_trains_like_one_device(model, x, [1, 1], loss=lambda loss: loss, chunks=3, checkpoint=checkpoint)


def test_a_tensor_that_every_micro_batch_needs_goes_along_whole():
    class AddTable(nn.Module):
        def forward(self, pair):
            x, table = pair
            return x + table.sum(0)

    table = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    x = torch.rand(5, 4, dtype=torch.float64, requires_grad=True)
    model = nn.Sequential(AddTable(), nn.Linear(4, 2)).double()
    Pipe(copy.deepcopy(model), [1, 1], devices=["cpu"] * 2, chunks=2)((x, NoChunk(table))).square().mean().backward()
    ours = x.grad, table.grad
    x.grad = table.grad = None
    model((x, table)).square().mean().backward()
    torch.testing.assert_close(ours, (x.grad, table.grad))


def test_a_batch_without_any_batched_tensor_is_one_micro_batch():
    class FromScalar(nn.Module):
        def forward(self, x):
            return x.reshape(1, 1) * 2

    pipe = Pipe(nn.Sequential(FromScalar(), nn.Linear(1, 1)), [1, 1], devices=["cpu"] * 2, chunks=4)
    assert pipe(torch.tensor(1.0)).shape == (1, 1)


def test_rows_that_change_between_layers_are_put_together_as_they_come():
    class Twice(nn.Module):
        def forward(self, x):
            return torch.cat([x, x])

    model = nn.Sequential(nn.Linear(2, 2), Twice())
    x = torch.rand(5, 2)
    output = Pipe(model, [1, 1], devices=["cpu"] * 2, chunks=5)(x)
    assert output.shape == (10, 2)
    output.sum().backward()


def test_an_output_that_nobody_uses_leaves_its_branch_without_gradient():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.a(x), self.b(x)

    for checkpoint in CHECKPOINT_MODES:
        pipe = Pipe(nn.Sequential(nn.Linear(2, 2), Two()), [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint=checkpoint)
        pipe(torch.rand(4, 2))[0].sum().backward()
        assert pipe[1].a.weight.grad is not None
        assert pipe[1].b.weight.grad is None
        assert pipe[0].weight.grad is not None


def test_an_output_detached_by_the_model_stays_out_of_the_graph():
    class Report(nn.Module):
        def forward(self, x):
            return x, x.detach().square()

    pipe = Pipe(nn.Sequential(nn.Linear(2, 2), Report()), [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint="never")
    out, report = pipe(torch.rand(4, 2))
    assert out.requires_grad and not report.requires_grad


def test_integer_inputs_reach_an_embedding():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(1), nn.Linear(12, 2)).double()
    assert_trains_like_one_device(model, torch.randint(10, (5, 3)), [1, 2], chunks=2)


def test_a_frozen_first_stage_gets_no_backward_and_the_rest_trains():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model[0].requires_grad_(False)
    assert_trains_like_one_device(model, torch.rand(5, 4, dtype=torch.float64), [1, 1, 1], chunks=2)


def test_a_frozen_model_returns_outputs_without_a_graph():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).requires_grad_(False)
    assert not Pipe(model, [1, 1], devices=["cpu"] * 2, chunks=2)(torch.rand(4, 4)).requires_grad


def test_tensors_with_different_numbers_of_rows_are_refused():
    pipe = Pipe(nn.Sequential(nn.Identity()), [1], devices=["cpu"], chunks=2)
    with pytest.raises(BatchError, match=r"\(4, 1\), \(3, 1\).*NoChunk"):
        pipe((torch.rand(4, 1), torch.rand(3, 1)))


def test_outputs_of_different_structure_are_refused():
    class Moody(nn.Module):
        def forward(self, x):
            return (x, x) if bool(x[0, 0] > 0) else x

    pipe = Pipe(nn.Sequential(nn.Identity(), Moody()), [1, 1], devices=["cpu"] * 2, chunks=2)
    with pytest.raises(BatchError, match="micro-batch 1 returned another structure"):
        pipe(torch.tensor([[1.0], [-1.0]]))


def test_values_that_differ_between_micro_batches_and_cannot_be_merged_are_refused():
    class Count(nn.Module):
        def forward(self, x):
            return x, len(x)

    pipe = Pipe(nn.Sequential(nn.Identity(), Count()), [1, 1], devices=["cpu"] * 2, chunks=2)
    assert pipe(torch.rand(4, 1))[1] == 2
    with pytest.raises(BatchError, match="a row for each row"):
        pipe(torch.rand(3, 1))


def test_an_empty_model_returns_its_input():
    x = torch.rand(2)
    assert Pipe(nn.Sequential(), [], devices=["cpu"] * 0)(x) is x
