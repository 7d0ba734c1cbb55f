"""A Pipe computes what the bare module computes: outputs, every gradient, every buffer, the updated weights."""

import copy

import pytest
import torch
from torch import nn

from support import CHECKPOINT_MODES, Begin, End, InMicroBatches, assert_trains_like_one_device
from thinpipe import Pipe
from thinpipe.skip import Namespace
from thinpipe.stages.microbatch import row_counts

BALANCES = [[4], [2, 2], [1, 3], [1, 2, 1], [1, 1, 1, 1]]


def mlp():
    return nn.Sequential(
        nn.Linear(6, 8), nn.Sequential(nn.Tanh(), nn.Linear(8, 8)), nn.GELU(), nn.Linear(8, 3)
    ).double()


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("chunks", range(1, 9))
@pytest.mark.parametrize("balance", BALANCES, ids=str)
def test_any_split_and_any_number_of_chunks_give_the_same_step(balance, chunks, checkpoint):
    x = torch.rand(8, 6, dtype=torch.float64, requires_grad=True)
    assert_trains_like_one_device(mlp(), x, balance, chunks=chunks, checkpoint=checkpoint)


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("balance", [[4], [2, 2], [1, 1, 1, 1]], ids=str)
def test_uneven_and_tiny_batches_give_the_same_step(balance, rows, checkpoint):
    x = torch.rand(rows, 6, dtype=torch.float64)
    assert_trains_like_one_device(mlp(), x, balance, chunks=4, checkpoint=checkpoint)


def test_an_empty_batch_gives_an_empty_output():
    pipe = Pipe(mlp(), [2, 2], devices=["cpu"] * 2, chunks=4)
    assert pipe(torch.rand(0, 6, dtype=torch.float64)).shape == (0, 3)


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("balance", [[4], [2, 2], [1, 1, 1, 1]], ids=str)
def test_float32_agrees_within_rounding(balance, chunks, checkpoint):
    x = torch.rand(7, 6, requires_grad=True)
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    assert_trains_like_one_device(mlp().float(), x, balance, chunks=chunks, checkpoint=checkpoint, tolerance=tolerance)


def nested_skips():
    """Two skips of one name, one inside the other, over four layers."""
    outer, inner = Namespace(), Namespace()
    return nn.Sequential(
        Begin(6).isolate(outer), Begin(6).isolate(inner), End(6).isolate(inner), End(6).isolate(outer)
    ).double()


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("chunks", [1, 2, 3, 8])
@pytest.mark.parametrize("balance", BALANCES, ids=str)
def test_skips_over_any_cut_give_the_same_step(balance, chunks, checkpoint):
    x = torch.rand(5, 6, dtype=torch.float64, requires_grad=True)
    assert_trains_like_one_device(nested_skips(), x, balance, chunks=chunks, checkpoint=checkpoint)


def norms():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)),
    ).double()


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("balance", BALANCES, ids=str)
def test_batch_norm_sees_each_micro_batch_once_as_one_device_would(balance, chunks, checkpoint):
    x = torch.rand(7, 2, 8, 8, dtype=torch.float64, requires_grad=True)

    def reference(module):
        return InMicroBatches(module, row_counts(7, chunks))

    assert_trains_like_one_device(norms(), x, balance, chunks=chunks, checkpoint=checkpoint, reference=reference)


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("chunks", [1, 2, 3, 8])
def test_deferred_statistics_equal_those_of_the_whole_batch(chunks, checkpoint):
    """Exact where the layer's input does not depend on how the batch was cut: at the first BatchNorm."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).double()
    bare, x = copy.deepcopy(model), torch.rand(7, 2, 8, 8, dtype=torch.float64)
    pipe = Pipe(model, [1, 2], devices=["cpu"] * 2, chunks=chunks, checkpoint=checkpoint, deferred_batch_norm=True)
    for _ in range(3):
        bare(x)
        pipe(x).sum().backward()
    torch.testing.assert_close(dict(pipe.named_buffers()), dict(bare.named_buffers()))


@pytest.mark.parametrize("balance", [[4], [2, 2], [1, 1, 1, 1]], ids=str)
def test_evaluation_is_the_same_for_batch_norm_and_dropout(balance):
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2)).double().eval()
    x = torch.rand(7, 6, dtype=torch.float64)
    pipe = Pipe(model, balance, devices=["cpu"] * len(balance), chunks=3)
    with torch.no_grad():
        torch.testing.assert_close(pipe(x), model(x))
    with torch.inference_mode():
        output = pipe(x)
        assert output.is_inference()
        torch.testing.assert_close(output, model(x))
    pipe(x).sum().backward()  # evaluation with gradients


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("balance", [[4], [2, 2], [1, 1, 1, 1]], ids=str)
def test_dropout_with_one_chunk_draws_what_the_bare_module_draws(balance, checkpoint):
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6), nn.Dropout(0.3)).double()
    bare, x = copy.deepcopy(model), torch.rand(16, 6, dtype=torch.float64)
    pipe = Pipe(model, balance, devices=["cpu"] * len(balance), checkpoint=checkpoint)
    for step in range(3):
        torch.manual_seed(step)
        expected = bare(x)
        expected.square().sum().backward()
        after = torch.rand(1)
        torch.manual_seed(step)
        output = pipe(x)
        output.square().sum().backward()
        torch.testing.assert_close(output, expected)
        assert torch.rand(1) == after, "the generator must be left where the bare module leaves it"
    torch.testing.assert_close([p.grad for p in pipe.parameters()], [p.grad for p in bare.parameters()])


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("balance", [[4], [2, 2], [1, 1, 1, 1]], ids=str)
def test_dropout_gradients_are_those_of_the_masks_that_were_drawn(balance, chunks):
    """With recomputation and several threads, the gradient must belong to the very masks of the forward.

    The output is linear in the input, so for a fixed draw the input's gradient times the input is the output's sum.
    """
    layers = [nn.Linear(6, 6, bias=False), nn.Dropout(0.5), nn.Linear(6, 6, bias=False), nn.Dropout(0.3)]
    for checkpoint in CHECKPOINT_MODES:
        model = nn.Sequential(*layers).double()
        pipe = Pipe(model, balance, devices=["cpu"] * len(balance), chunks=chunks, checkpoint=checkpoint)
        for _ in range(3):
            x = torch.rand(16, 6, dtype=torch.float64, requires_grad=True)
            output = pipe(x)
            output.sum().backward()
            torch.testing.assert_close((x.grad * x).sum(), output.sum())


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("balance", [[4], [2, 2], [1, 1, 1, 1]], ids=str)
def test_autocast_reaches_the_stages_and_their_recomputation(balance, chunks, checkpoint):
    model = mlp().float()
    bare, x = copy.deepcopy(model), torch.rand(6, 6, requires_grad=True)
    pipe = Pipe(model, balance, devices=["cpu"] * len(balance), chunks=chunks, checkpoint=checkpoint)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, output = InMicroBatches(bare, row_counts(6, chunks))(x), pipe(x)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected)
    output.float().square().mean().backward()
    expected.float().square().mean().backward()
    # bfloat16 has 8 bits of mantissa, and partial sums are rounded in another order.
    torch.testing.assert_close(
        [p.grad for p in pipe.parameters()], [p.grad for p in bare.parameters()], rtol=2e-2, atol=2e-3
    )
