"""A recomputation is the same forward once more, and leaves no trace of its own."""

import copy

import pytest
import torch
from torch import nn

from support import CHECKPOINT_MODES, InMicroBatches, assert_trains_like_one_device
from thinpipe import Pipe, is_checkpointing, is_recomputing
from thinpipe.errors import RecomputeError, SkipUseError
from thinpipe.skip import pop, skippable, stash
from thinpipe.stages.microbatch import row_counts


class Spy(nn.Module):
    """Writes down in which phase each micro-batch passes."""

    def __init__(self, log):
        super().__init__()
        self.log = [log]

    def forward(self, x):
        self.log[0].append((int(x[0, 0]), is_checkpointing(), is_recomputing()))
        return x * 1


@pytest.mark.parametrize(
    ("checkpoint", "recomputed"), [("always", {0, 1, 2}), ("except_last", {0, 1}), ("never", set())]
)
def test_the_mode_decides_which_micro_batches_are_recomputed(checkpoint, recomputed):
    log = []
    pipe = Pipe(nn.Sequential(Spy(log), nn.Identity()), [1, 1], devices=["cpu"] * 2, chunks=3, checkpoint=checkpoint)
    x = torch.arange(3.0).reshape(3, 1).requires_grad_()
    output = pipe(x)
    assert sorted(log) == [(i, i in recomputed, False) for i in range(3)]
    log.clear()
    output.sum().backward()
    assert sorted(log) == [(i, False, True) for i in sorted(recomputed)]
    assert not is_checkpointing() and not is_recomputing()


def test_except_last_means_the_last_micro_batch_there_is():
    log = []
    pipe = Pipe(nn.Sequential(Spy(log)), [1], chunks=8, checkpoint="except_last", devices=["cpu"])
    pipe(torch.arange(2.0).reshape(2, 1).requires_grad_()).sum().backward()
    assert log == [(0, True, False), (1, False, False), (0, False, True)]


@pytest.mark.parametrize("train", [True, False])
def test_nothing_is_checkpointed_without_gradients_or_in_evaluation(train):
    log = []
    pipe = Pipe(nn.Sequential(Spy(log)), [1], chunks=2, checkpoint="always", devices=["cpu"]).train(train)
    with torch.set_grad_enabled(not train):
        pipe(torch.ones(2, 1, requires_grad=True))
    assert not any(checkpointing for _, checkpointing, _ in log)


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("balance", [[4], [1, 3], [2, 2], [1, 1, 1, 1]], ids=str)
def test_layers_that_work_in_place_may_stand_anywhere(balance, chunks, checkpoint):
    """First in the model, first and last in a stage: where autograd forbids or a recomputation would see the damage."""
    layers = [nn.LeakyReLU(inplace=True), nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU(inplace=True)]
    x = torch.randn(6, 4, dtype=torch.float64)
    assert_trains_like_one_device(nn.Sequential(*layers).double(), x, balance, chunks=chunks, checkpoint=checkpoint)


def test_a_layer_that_begins_to_work_in_place_later_is_noticed():
    class Moody(nn.Module):
        in_place = False

        def forward(self, x):
            return x.mul_(2) if self.in_place else x * 2

    moody = Moody()
    pipe = Pipe(nn.Sequential(nn.Linear(2, 2), moody), [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint="always")
    pipe(torch.ones(4, 2)).sum().backward()
    moody.in_place = True
    with pytest.raises(RecomputeError, match="run the step again"):
        pipe(torch.ones(4, 2))
    pipe(torch.ones(4, 2)).sum().backward()


class Spectral(nn.Module):
    """Like spectral norm: the output depends on a buffer that every forward moves."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 4))
        self.register_buffer("u", torch.ones(4))

    def forward(self, x):
        with torch.no_grad():
            self.u.copy_(nn.functional.normalize(self.weight.T @ (self.weight @ self.u), dim=0))
        return x @ self.weight / (self.weight @ self.u.clone()).norm()


class Reassigned(Spectral):
    """The same, with a new tensor in the buffer's place each time."""

    def forward(self, x):
        self.u = nn.functional.normalize(self.weight.detach().T @ (self.weight.detach() @ self.u), dim=0)
        return x @ self.weight / (self.weight @ self.u).norm()


@pytest.mark.parametrize("layer", [Spectral, Reassigned])
@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
@pytest.mark.parametrize("balance", [[3], [1, 2]], ids=str)
def test_a_buffer_that_the_forward_moves_moves_once(balance, checkpoint, layer):
    model = nn.Sequential(layer(), nn.Tanh(), layer()).double()
    bare, x = copy.deepcopy(model), torch.rand(6, 4, dtype=torch.float64)
    reference = InMicroBatches(bare, row_counts(6, 3))
    pipe = Pipe(model, balance, devices=["cpu"] * len(balance), chunks=3, checkpoint=checkpoint)
    for _ in range(2):
        pipe(x).square().sum().backward()
        reference(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in pipe.parameters()], [p.grad for p in bare.parameters()])
    torch.testing.assert_close(dict(pipe.named_buffers()), dict(bare.named_buffers()))


def test_instance_norm_with_statistics_moves_them_once():
    model = nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()).double()
    bare, x = copy.deepcopy(model), torch.rand(4, 2, 5, dtype=torch.float64, requires_grad=True)
    Pipe(model, [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint="always")(x).square().sum().backward()
    InMicroBatches(bare, [2, 2])(x)
    torch.testing.assert_close(dict(model.named_buffers()), dict(bare.named_buffers()))


def test_the_optimizer_may_not_step_between_forward_and_backward():
    pipe = Pipe(
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint="always"
    )
    loss = pipe(torch.ones(4, 2)).sum()
    with torch.no_grad():
        pipe[0].bias.add_(1)
    with pytest.raises(RecomputeError, match="after backward"):
        loss.backward()


@pytest.mark.parametrize("checkpoint", CHECKPOINT_MODES)
def test_a_skip_that_is_also_the_stages_output_may_not_be_changed_in_place(checkpoint):
    """On one device the skip would change as well; across a cut it would not, so the pipe refuses to guess."""

    @skippable(stash=["x"])
    class Stash(nn.Module):
        def forward(self, x):
            x = x * 2
            yield stash("x", x)
            return x

    @skippable(pop=["x"])
    class Pop(nn.Module):
        def forward(self, x):
            skip = yield pop("x")
            return x + skip.mul_(3)  # its own copy: allowed

    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    bad = Pipe(
        nn.Sequential(Stash(), nn.ReLU(inplace=True), Pop()),
        [1, 2],
        devices=["cpu"] * 2,
        chunks=2,
        checkpoint=checkpoint,
    )
    with pytest.raises(SkipUseError, match="inplace=False"):
        bad(x).sum().backward()
    with torch.no_grad(), pytest.raises(SkipUseError, match="inplace=False"):
        bad.eval()(x)
    assert_trains_like_one_device(nn.Sequential(Stash(), nn.ReLU(), Pop()), x, [1, 2], chunks=2, checkpoint=checkpoint)
    assert_trains_like_one_device(
        nn.Sequential(Stash(), nn.ReLU(), Pop()), x, [1, 1, 1], chunks=2, checkpoint=checkpoint
    )


def test_an_input_made_in_inference_mode_is_refused_in_pytorchs_own_words():
    """Such a tensor keeps no version, by which changes in place are noticed; the bare module says the same."""
    with torch.inference_mode():
        x = torch.rand(4, 3)
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    pipe = Pipe(model, [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint="always")
    for module in (model, pipe):
        with pytest.raises(RuntimeError, match="make a clone"):
            module(x).sum().backward()
    pipe(x.clone()).sum().backward()
    with torch.inference_mode():
        assert pipe(x).shape == (4, 2)
