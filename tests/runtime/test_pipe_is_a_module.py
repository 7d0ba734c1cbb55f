"""A Pipe is an nn.Module like any other: names, hooks, optimizers, autograd, copies."""

import copy
import gc
import io
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from support import CHECKPOINT_MODES
from thinpipe import Pipe
from thinpipe.errors import MoveError


def model():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4))


def piped(module=None, **options):
    options = {"chunks": 2, "checkpoint": "always", **options}
    return Pipe(module or model(), [2, 2], devices=["cpu"] * 2, **options)


def test_names_are_those_of_the_bare_module():
    bare = model()
    pipe = piped(bare)
    assert list(pipe.state_dict()) == list(bare.state_dict())
    assert [n for n, _ in pipe.named_parameters()] == [n for n, _ in bare.named_parameters()]
    assert list(pipe) == list(bare) and len(pipe) == 4
    assert pipe[0] is bare[0] and pipe[-1] is bare[-1] and list(pipe[1:3]) == list(bare[1:3])
    with pytest.raises(IndexError):
        pipe[4]


@pytest.mark.parametrize("deferred", [False, True])
def test_state_dict_travels_in_both_directions(deferred):
    bare, pipe = model(), piped(deferred_batch_norm=deferred)
    pipe.load_state_dict(bare.state_dict())
    torch.testing.assert_close(pipe.state_dict(), bare.state_dict())
    pipe(torch.rand(6, 4)).sum().backward()
    bare.load_state_dict(pipe.state_dict())
    torch.testing.assert_close(bare.state_dict(), pipe.state_dict())


def test_a_layer_may_be_called_like_an_attribute_of_the_pipe():
    bare = nn.Sequential()
    bare.chunks_ = nn.Linear(2, 2)
    bare._modules["forward"] = nn.Linear(2, 2)
    bare._modules["chunks"] = nn.Linear(2, 2)
    pipe = Pipe(bare, [1, 2], devices=["cpu"] * 2, chunks=2)
    assert pipe.chunks == 2
    assert "forward.weight" in pipe.state_dict()
    assert pipe(torch.rand(4, 2)).shape == (4, 2)


def test_a_hook_on_a_parameter_fires_once_with_the_whole_gradient():
    for checkpoint in CHECKPOINT_MODES:
        pipe = piped(checkpoint=checkpoint)
        seen, accumulated = [], []
        pipe[0].weight.register_hook(lambda grad, seen=seen: seen.append(grad.clone()))
        pipe[0].weight.register_post_accumulate_grad_hook(lambda p, acc=accumulated: acc.append(p.grad.clone()))
        pipe(torch.rand(6, 4)).square().sum().backward()
        assert len(seen) == len(accumulated) == 1
        torch.testing.assert_close(seen[0], pipe[0].weight.grad)


def test_a_hook_may_change_the_gradient():
    pipe = piped()
    pipe[0].weight.register_hook(torch.zeros_like)
    pipe(torch.rand(6, 4)).square().sum().backward()
    assert not pipe[0].weight.grad.any() and pipe[0].bias.grad.any()


def test_forward_and_full_backward_hooks_on_the_pipe_fire_once():
    pipe, calls = piped(), []
    pipe.register_forward_hook(lambda *_: calls.append("forward"))
    pipe.register_full_backward_hook(lambda *_: calls.append("backward"))
    pipe(torch.rand(6, 4, requires_grad=True)).square().sum().backward()
    assert calls == ["forward", "backward"]


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_autograd_grad_returns_gradients_and_leaves_grad_alone(checkpoint):
    bare = model()
    pipe = piped(copy.deepcopy(bare), chunks=1, checkpoint=checkpoint)
    x = torch.rand(6, 4, requires_grad=True)
    ours = torch.autograd.grad(pipe(x).square().sum(), [x, *pipe.parameters()])
    theirs = torch.autograd.grad(bare(x).square().sum(), [x, *bare.parameters()])
    torch.testing.assert_close(ours, theirs)
    assert x.grad is None and all(p.grad is None for p in pipe.parameters())


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_gradients_accumulate_over_backwards(checkpoint):
    pipe, x = piped(checkpoint=checkpoint).eval(), torch.rand(6, 4)
    pipe(x).square().sum().backward()
    once = [p.grad.clone() for p in pipe.parameters()]
    pipe(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in pipe.parameters()], [2 * g for g in once])


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_a_gradient_that_is_there_is_added_to_in_place(checkpoint):
    """As bare modules do. A second gradient beside it would be a third of all memory in a large model."""
    pipe, x = piped(checkpoint=checkpoint).eval(), torch.rand(6, 4)
    pipe(x).square().sum().backward()
    before = [(p.grad, p.grad.clone()) for p in pipe.parameters()]
    events = []
    pipe[0].weight.register_post_accumulate_grad_hook(lambda p: events.append(p.grad.clone()))
    pipe(x).square().sum().backward()
    for parameter, (same, old) in zip(pipe.parameters(), before, strict=True):
        assert parameter.grad is same
        torch.testing.assert_close(parameter.grad, 2 * old)
    torch.testing.assert_close(events, [pipe[0].weight.grad])


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_autograd_grad_leaves_gradients_alone_that_are_there(checkpoint):
    pipe, x = piped(checkpoint=checkpoint).eval(), torch.rand(6, 4)
    pipe(x).square().sum().backward()
    before = [p.grad.clone() for p in pipe.parameters()]
    returned = torch.autograd.grad(pipe(x).square().sum(), list(pipe.parameters()))
    torch.testing.assert_close(list(returned), before)
    torch.testing.assert_close([p.grad for p in pipe.parameters()], before)
    pipe(x).square().sum().backward(inputs=[pipe[0].weight])
    torch.testing.assert_close(pipe[0].weight.grad, 2 * before[0])
    torch.testing.assert_close([p.grad for p in pipe.parameters()][1:], before[1:])


def test_a_hook_sees_only_what_is_added_to_a_gradient():
    pipe, x, seen = piped().eval(), torch.rand(6, 4), []
    pipe(x).square().sum().backward()
    once = pipe[0].weight.grad.clone()
    pipe[0].weight.register_hook(lambda grad: seen.append(grad.clone()))
    pipe(x).square().sum().backward()
    torch.testing.assert_close(seen, [once])
    torch.testing.assert_close(pipe[0].weight.grad, 2 * once)


def test_sparse_gradients_accumulate_too():
    pipe = Pipe(nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2)), [1, 1], devices=["cpu"] * 2, chunks=2)
    rows = torch.tensor([1, 5, 5, 8])
    pipe(rows).sum().backward()
    once = pipe[0].weight.grad.to_dense()
    pipe(rows).sum().backward()
    torch.testing.assert_close(pipe[0].weight.grad.to_dense(), 2 * once)


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_two_forwards_may_be_alive_at_once_and_go_backward_in_any_order(checkpoint):
    bare = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    pipe = piped(copy.deepcopy(bare), checkpoint=checkpoint)
    a, b = torch.rand(6, 4), torch.rand(3, 4)
    loss_a, loss_b = pipe(a).square().sum(), pipe(b).square().sum()
    loss_a.backward()
    loss_b.backward()
    (bare(a).square().sum() + bare(b).square().sum()).backward()
    torch.testing.assert_close([p.grad for p in pipe.parameters()], [p.grad for p in bare.parameters()])


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_a_retained_graph_goes_backward_again_and_a_freed_one_refuses(checkpoint):
    pipe, x = piped(checkpoint=checkpoint), torch.rand(6, 4, requires_grad=True)
    loss = pipe(x).square().sum()
    loss.backward(retain_graph=True)
    once = x.grad.clone()
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * once)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_an_input_changed_before_the_backward_is_noticed():
    pipe, x = piped(), torch.rand(6, 4)
    loss = pipe(x).square().sum()
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_derivative_is_refused_and_not_wrong():
    pipe, x = piped(chunks=2), torch.rand(6, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(pipe(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.square().sum().backward()


def test_a_pipe_under_checkpoint_of_torch_and_inside_a_larger_model():
    bare = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    pipe = piped(copy.deepcopy(bare))
    head = nn.Linear(4, 2)
    x = torch.rand(6, 4, requires_grad=True)
    for reentrant in (False, True):
        x.grad = None
        head(torch_checkpoint(pipe, x * 2, use_reentrant=reentrant)).square().sum().backward()
        ours, x.grad = x.grad, None
        head(bare(x * 2)).square().sum().backward()
        torch.testing.assert_close(ours, x.grad)


def test_a_pipe_inside_a_stage_of_another_pipe():
    bare = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    inner = Pipe(copy.deepcopy(bare), [2, 2], devices=["cpu"] * 2, chunks=2, checkpoint="always")
    outer = Pipe(nn.Sequential(nn.Linear(4, 4), inner), [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint="always")
    whole = nn.Sequential(copy.deepcopy(outer[0]), bare)
    x = torch.rand(8, 4)
    outer(x).square().sum().backward()
    whole(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in outer.parameters()], [p.grad for p in whole.parameters()])


def test_copies_and_pickles_run_on_threads_of_their_own():
    pipe, x = piped(), torch.rand(6, 4)
    pipe(x)
    buffer = io.BytesIO()
    torch.save(pipe, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(pipe), torch.load(buffer, weights_only=False)):
        other.load_state_dict(pipe.state_dict())
        assert other.balance == [2, 2] and other[0] is not pipe[0]
        torch.testing.assert_close(other.eval()(x), pipe.eval()(x))
        other(x).sum().backward()
        assert pipe[0].weight.grad is None
        pipe.train()


def test_moving_is_refused_and_casting_works():
    pipe = piped()
    for move in (
        pipe.cpu,
        pipe.cuda,
        lambda: pipe.to("cpu"),
        lambda: pipe.to(torch.device("cpu")),
        lambda: pipe.to(0),
        lambda: pipe.to(device="cpu"),
        lambda: pipe.to(torch.rand(1)),
    ):
        with pytest.raises(MoveError, match="devices="):
            move()
    assert pipe.double()(torch.rand(4, 4, dtype=torch.float64)).dtype == torch.float64
    assert pipe.to(torch.float32)(torch.rand(4, 4)).dtype == torch.float32


def test_train_and_eval_reach_the_stages():
    pipe = piped(nn.Sequential(nn.Dropout(0.9), nn.Identity(), nn.Identity(), nn.Identity()).eval())
    assert not pipe.training
    assert torch.equal(pipe(torch.ones(8, 4)), torch.ones(8, 4))
    assert not torch.equal(pipe.train()(torch.ones(8, 4)), torch.ones(8, 4))


def test_optimizers_with_tied_weights_and_lstms_train_as_bare():
    """An LSTM keeps a flat list of its weights aside, and tied layers share one parameter: aliases must reach both."""

    class Last(nn.Module):
        def forward(self, pair):
            return pair[0][:, -1]

    tied = nn.Linear(4, 4)
    twin = nn.Linear(4, 4)
    twin.weight = tied.weight
    bare = nn.Sequential(nn.LSTM(4, 4, batch_first=True), Last(), tied, nn.Tanh(), twin)
    pipe = Pipe(copy.deepcopy(bare), [2, 3], devices=["cpu"] * 2, chunks=2, checkpoint="except_last")
    x = torch.rand(6, 5, 4)
    for module in (bare, pipe):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(list(pipe.parameters()), list(bare.parameters()), rtol=1e-4, atol=1e-6)


def test_a_parameter_that_a_layer_holds_by_another_reference_still_gets_its_gradient():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.references = [self.weight]

        def forward(self, x):
            return x * self.references[0]

    pipe = Pipe(nn.Sequential(nn.Linear(4, 4), Hidden()), [1, 1], devices=["cpu"] * 2, chunks=2)
    pipe(torch.ones(4, 4)).sum().backward()
    assert pipe[1].weight.grad is not None and pipe[0].weight.grad is not None


def test_threads_live_as_long_as_the_pipe_and_no_longer():
    before = set(threading.enumerate())
    pipe = piped()
    pipe(torch.rand(6, 4)).sum().backward()
    started = set(threading.enumerate()) - before
    assert len(started) == 2
    pipe(torch.rand(6, 4)).sum().backward()
    assert set(threading.enumerate()) - before == started
    gone = weakref.ref(pipe)
    del pipe
    gc.collect()
    assert gone() is None
    assert not any(thread.is_alive() for thread in started)


def test_a_finished_step_keeps_no_activation_alive():
    pipe = piped(checkpoint="never")
    output = pipe(torch.rand(6, 4))
    kept = weakref.ref(output.grad_fn)
    activations = []
    pipe[1].register_forward_hook(lambda _m, _i, out: activations.append(weakref.ref(out)))
    output.sum().backward()
    output = pipe(torch.rand(6, 4))
    assert any(ref() is not None for ref in activations) or activations
    output.sum().backward()
    del output
    gc.collect()
    assert kept() is None
    assert all(ref() is None for ref in activations)


def test_the_automatic_balance_is_chosen_on_the_first_batch():
    heavy = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    bare = nn.Sequential(nn.Identity(), nn.Identity(), copy.deepcopy(heavy), nn.Identity(), heavy, nn.Identity())
    pipe = Pipe(bare, devices=["cpu"] * 2, chunks=2)
    assert pipe.balance is None and pipe.partitions == []
    state = torch.get_rng_state()
    output = pipe(torch.rand(256, 256))
    assert pipe.balance is not None and sum(pipe.balance) == 6
    heavy_stages = [sum(isinstance(layer, nn.Sequential) for layer in part) for part in pipe.partitions]
    assert heavy_stages == [1, 1]
    assert output.shape == (256, 256)
    assert all(p.grad is None for p in pipe.parameters())
    assert not torch.equal(state, torch.zeros_like(state))


def test_rebalance_chooses_before_anything_is_trained():
    pipe = Pipe(model(), devices=["cpu"] * 2, chunks=2)
    statistics = copy.deepcopy(pipe[3].state_dict())
    balance = pipe.rebalance(torch.rand(8, 4), timeout=0.05)
    assert pipe.balance == balance and sum(balance) == 4
    torch.testing.assert_close(pipe[3].state_dict(), statistics)
    before = set(threading.enumerate())
    pipe(torch.rand(8, 4))
    pipe.rebalance(torch.rand(8, 4), timeout=0.05)
    assert set(threading.enumerate()) <= before, "the threads of the old balance are gone"


def test_without_devices_a_cpu_has_two_stages():
    if torch.cuda.is_available():
        pytest.skip("this machine has GPUs")
    assert Pipe(model()).devices == [torch.device("cpu")] * 2
    assert Pipe(model(), [1, 1, 2], devices=["cpu"] * 3).devices == [torch.device("cpu")] * 3
    assert Pipe(nn.Sequential(nn.Linear(1, 1))).devices == [torch.device("cpu")]


def test_the_automatic_balance_works_from_an_evaluation_too():
    pipe = Pipe(model(), devices=["cpu"] * 2, chunks=2)
    with torch.inference_mode():
        assert pipe(torch.rand(8, 4)).shape == (8, 4)
    assert sum(pipe.balance) == 4


def test_a_layer_that_was_replaced_is_the_one_that_runs():
    """As libraries do that wrap layers in adapters: set a new child under the old name."""
    pipe = piped()
    pipe(torch.rand(6, 4))
    setattr(pipe, "1", nn.Threshold(1e9, 7.0))  # whatever comes in, seven comes out
    output = pipe.eval()(torch.rand(6, 4))
    assert pipe[1] is pipe.partitions[0][1]
    torch.testing.assert_close(output, pipe[3](pipe[2](torch.full((6, 4), 7.0))))


def test_compiled_layers_train_like_plain_ones():
    bare = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    compiled = copy.deepcopy(bare)
    compiled[0], compiled[2] = (torch.compile(layer, backend="aot_eager") for layer in (compiled[0], compiled[2]))
    pipe = piped(compiled, checkpoint="except_last")
    x = torch.rand(6, 4)
    for _ in range(2):
        pipe(x).square().sum().backward()
        bare(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in pipe.parameters()], [p.grad for p in bare.parameters()])


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_backward_hooks_on_layers_fire_once_a_micro_batch(checkpoint):
    pipe, calls = piped(checkpoint=checkpoint), []
    pipe[0].register_full_backward_hook(lambda *_: calls.append(1))
    pipe(torch.rand(6, 4, requires_grad=True)).square().sum().backward()
    assert len(calls) == 2


def test_a_batch_is_forgotten_once_it_went_backward():
    pipe, x = piped(), torch.rand(6, 4)
    kept = weakref.ref(x)
    loss = pipe(x).square().sum()
    loss.backward()
    del x
    gc.collect()
    assert kept() is None and loss.requires_grad
